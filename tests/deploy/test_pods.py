"""Pods of an Indexed Job, as Kubernetes makes them: host names with a domain, a number, names that resolve late."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cluster.worker_support import SHORT, launchers
from tests.deploy.hosts_support import hosts, on, write_hosts

_DOMAIN = "workers.default.svc.cluster.local"


def _entry(pod: int) -> str:
    return f"10.78.0.{10 + pod} train-{pod}.{_DOMAIN} train-{pod}"


def test_pods_of_an_indexed_job_find_each_other_by_their_names(tmp_path: Path) -> None:
    with hosts("k", 2) as prefix, launchers(tmp_path) as start:
        pods = []
        for pod in (0, 1):
            # As in a pod: /etc/hosts has its own name; the others' are with the cluster's DNS, once they are up.
            write_hosts(prefix, pod, [_entry(pod)])
            named = ("unshare", "--uts", "sh", "-c", f'hostname train-{pod} && exec "$@"', "sh")
            env = {"JOB_COMPLETION_INDEX": str(pod), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
            arguments = (*SHORT, "--workers", 2)
            pods.append(start(f"pod{pod}", *arguments, env=env, before=(*on(prefix, pod), *named)))
        pods[1].until(f"waiting for 1 of 2 workers: worker 0 (train-0.{_DOMAIN}:2222): its name does not resolve")
        time.sleep(1)
        for pod in (0, 1):
            write_hosts(prefix, pod, [_entry(0), _entry(1)])
        assert [one.wait() for one in pods] == [0, 0], pods[0].text + pods[1].text
    assert "cluster: Kubernetes Indexed Job (JOB_COMPLETION_INDEX, host name" in pods[0].text
    summary = json.loads((pods[0].folder / "summary.json").read_text())
    assert (summary["status"], summary["workers"]) == ("done", 2)
    config = (pods[0].folder / "config.yaml").read_text()
    assert f'workers: ["train-0.{_DOMAIN}:2222", "train-1.{_DOMAIN}:2222"]' in config
