"""``tfmp launch``: anyone's program, N times, as one supervised cluster on this machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tfmp.cluster.proxy import no_proxy_env
from tfmp.cluster.resources import GPU_VARIABLE, available_cores, cpu_sets, oversubscribed, share_gpus, thread_env
from tfmp.cluster.spec import ClusterSpec
from tfmp.cluster.tf_config import make_tf_config
from tfmp.errors import EXIT_OK, TfmpError
from tfmp.jobs.hints import known_hint
from tfmp.jobs.outcome import other_workers, signal_hint
from tfmp.jobs.planning import Machine
from tfmp.jobs.verdict import Evidence, judge
from tfmp.launch.ports import hold_ports
from tfmp.launch.runner import run_group
from tfmp.launch.spec import GroupResult, WorkerSpec, signal_name
from tfmp.launch.zygote_client import Zygote

_HOST = "127.0.0.1"


def launch(
    command: tuple[str, ...],
    *,
    workers: int,
    base_port: int | None,
    log_dir: Path | None,
    grace_period_s: float,
    quiet: bool,
) -> int:
    """Run ``command`` once a worker and return the exit code.

    Each copy gets TF_CONFIG, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, its share of
    threads and GPUs, and proxy exceptions for the cluster.

    Raises:
        UsageError: Ports in use, or GPUs that cannot be shared equally.
    """
    machine = Machine.here()
    gpus = share_gpus(machine.gpus, workers)
    shared_env = thread_env(available_cores(), workers, machine.environ) | no_proxy_env(machine.environ, [_HOST])
    pins = cpu_sets(machine.cores, workers, machine.cpus)
    if crowded := oversubscribed(machine.cores, workers):
        print(f"warning: {crowded}", file=sys.stderr, flush=True)
    with (
        hold_ports(workers + 1, base_port, _HOST) as held,
        tempfile.TemporaryDirectory(prefix="tfmp-launch-") as scratch,
    ):
        *ports, master_port = held.ports
        cluster = ClusterSpec.local(_HOST, ports)
        logs = log_dir or Path(scratch)
        specs = []
        for rank in range(workers):
            env = {
                **shared_env,
                "TF_CONFIG": make_tf_config(cluster, "worker", rank),
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": _HOST,
                "MASTER_PORT": str(master_port),
                "PYTHONUNBUFFERED": machine.environ.get("PYTHONUNBUFFERED", "1"),
            }
            if (share := gpus[rank]) is not None:
                env[GPU_VARIABLE] = share
            specs.append(
                WorkerSpec(rank=rank, env=env, argv=command, log_path=logs / f"worker-{rank}.log", cpus=pins[rank])
            )

        def on_line(rank: int, stream: str, text: str) -> None:
            out = sys.stderr if stream == "stderr" else sys.stdout
            print(f"[worker {rank}] {text}", file=out, flush=True)

        with Zygote.start((), private_network="off") as zygote:
            result = run_group(zygote, specs, on_line=None if quiet else on_line, grace_period_s=grace_period_s)
    return _report(result, logs if log_dir else None)


def _report(result: GroupResult, logs: Path | None) -> int:
    """Say on standard error how a group that did not end well ended; return the exit code."""

    def complain(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if result.stopped_by is not None:
        complain(f"interrupted by {signal_name(result.stopped_by)}")
        return result.exit_code
    if result.exit_code == EXIT_OK:
        return EXIT_OK
    verdict = judge([Evidence(one, tail=result.tail(one.rank)) for one in result.exits], result)
    culprit = verdict.culprit
    if culprit is None:
        complain(f"error: {result.problem}")
        return result.exit_code
    first = culprit.exit
    complain(
        TfmpError(
            f"worker {first.rank} failed first: {first.describe()}",
            where=str(logs) if logs else None,
            hint=signal_hint(first.signal) or known_hint(culprit.tail),
        ).render()
    )
    if culprit.tail:
        complain(f"  last lines of worker {first.rank}:")
        complain("\n".join(f"  | {line}" for line in culprit.tail))
    if others := other_workers(result, verdict):
        complain(others)
    return first.shell_code
