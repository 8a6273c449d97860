"""The image and the demo: what they are made of, and that they compute what the host does."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, Run
from tests.deploy.docker_support import Group, Image, compose_commands, docker, run
from tfmp import __version__

_DEMO = ROOT / "docker" / "compose.yaml"
_WORKERS = 4


@pytest.fixture(scope="module")
def demo(image: Image) -> Iterator[Group]:
    """The project's Compose file."""
    group = Group(compose_commands()[0], _DEMO, f"tfmpdemo{os.getpid()}", _WORKERS)
    try:
        yield group
    finally:
        group.down()


@pytest.mark.timeout(900)
def test_the_image_is_small_runs_as_nobody_and_says_what_it_is(
    image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    found = image.inspect()
    with capsys.disabled():
        print(f"\nimage {image.name}: {found['Size'] / 1e9:.2f} GB, built in {image.seconds:.0f} s")
    assert found["Size"] < 1.8e9
    config = found["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["tfmp"], "the exec form: tfmp itself is process 1"
    assert config["Healthcheck"]["Test"] == ["CMD", "tfmp", "doctor", "--quick"]
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items() if "opencontainers" in name}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("tfmp", __version__, "Apache-2.0")
    who = docker("run", "--rm", "--entrypoint", "sh", image.name, "-c", "id -u; pwd; stat -c %u /runs; tfmp --version")
    assert who.split("\n")[:4] == ["10001", "/runs", "10001", f"tfmp, version {__version__}"]


@pytest.mark.timeout(300)
def test_no_layer_has_a_secret_or_the_name_of_a_registry_or_of_this_machine(image: Image) -> None:
    found = image.inspect()
    names = {variable.partition("=")[0] for variable in found["Config"]["Env"]}
    assert names <= {"PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "LANG", "GPG_KEY",
                     "PYTHON_VERSION", "PYTHON_SHA256"}  # fmt: skip
    index = subprocess.run(["pip", "config", "get", "global.index-url"], capture_output=True, text=True).stdout.strip()
    hosts = {match[1] for match in re.finditer(r"//([^/@\s]+)", f"{index} {os.environ.get('PIP_INDEX_URL', '')}")}
    proxies = {
        match[1]
        for name in ("http_proxy", "https_proxy")
        for match in [re.search(r"//([^/\s]+)", os.environ.get(name, ""))]
        if match
    }
    forbidden = {text.encode() for text in (*hosts, *proxies, socket.gethostname()) if len(text) > 3}
    base = docker("image", "inspect", "--format", "{{len .RootFS.Layers}}",
                  os.environ.get("BASE_IMAGE", "python:3.11-slim"))  # fmt: skip
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image.name)
    saved = subprocess.run(["/usr/bin/docker", "save", image.name], capture_output=True, check=True).stdout
    kept: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        manifest: Any = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        for layer in manifest[0]["Layers"][int(base) :]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                for member in files:
                    kept.append(member.name)
                    small = member.isfile() and member.size < 1_000_000
                    content = files.extractfile(member).read() if small else b""  # type: ignore[union-attr]
                    for text in forbidden:
                        assert text not in content, f"{member.name} names {text!r}"
    for text in forbidden:
        assert text.decode() not in history
    assert len(kept) > 1000
    wrong = re.compile(r"pip\.conf|/\.netrc|/\.git/|id_rsa|\.pem$|(^|/)pip/|tensorflow/include")
    public = ("cacert.pem", "roots.pem")  # certificates of authorities
    assert [name for name in kept if wrong.search(name) and not name.endswith(public)] == []


@pytest.mark.timeout(600)
def test_the_demo_computes_what_the_host_does(
    demo: Group, trained: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    done = demo("up", "--exit-code-from", "worker-0", timeout_s=400, ok=False)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    assert demo.codes() == [0] * _WORKERS
    summary = json.loads(demo.read("/runs/mnist/summary.json"))
    assert (summary["status"], summary["workers"], summary["collective"]) == ("done", _WORKERS, "ring")
    places = ["/runs/mnist", *(f"/runs/mnist/worker-{rank}" for rank in range(1, _WORKERS))]
    digests = [
        re.findall(r"weights_sha256 (\w{64})", demo.read(f"{place}/logs/attempt-0/worker-{rank}.log"))
        for rank, place in enumerate(places)
    ]
    assert digests == [[summary["weights_sha256"]]] * _WORKERS
    host = trained("configs/mnist.yaml", "--workers", _WORKERS, "--collective", "ring")
    assert summary["weights_sha256"] == host.summary["weights_sha256"]
    assert summary["val_accuracy"] > 0.97
    with capsys.disabled():
        print(
            f"\ndemo: {seconds:.0f} s; weights_sha256 {summary['weights_sha256']}: four containers and the host alike"
        )


@pytest.mark.timeout(300)
def test_the_demo_again_says_that_nothing_is_left_to_do(demo: Group) -> None:
    done = demo("up", "--exit-code-from", "worker-0", ok=False)
    assert done.returncode == 0, done.stdout
    assert demo.codes() == [0] * _WORKERS
    for name in demo.names:
        assert "nothing left to do: /runs/mnist finished after 5 epochs" in demo.log(name)


def test_containers_of_the_demo_are_shut_in(demo: Group) -> None:
    demo("up", "--no-start", ok=True)
    for name in demo.names:
        found = demo.state(name)
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"] is True
        assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
        assert host["PortBindings"] in (None, {})
        assert not host["PublishAllPorts"]
        assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (10**9, 2048 * 2**20, 256 * 2**20)
        assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
        assert found["Config"]["StopTimeout"] == 15
        (network,) = found["NetworkSettings"]["Networks"]
        assert json.loads(docker("network", "inspect", network))[0]["Internal"] is True


def test_every_compose_takes_the_files(image: Image) -> None:
    gpu = ROOT / "docker" / "compose.gpu.yaml"
    for command in compose_commands():
        found = yaml.safe_load(run(*command, "-f", _DEMO, "-f", gpu, "config").stdout)
        for rank in range(_WORKERS):
            service = found["services"][f"worker-{rank}"]
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert (device["driver"], device["device_ids"]) == ("nvidia", [str(rank)])
            assert (service["hostname"], service["image"]) == (f"worker-{rank}", "tfmp:gpu")
            assert service["build"]["args"]["TENSORFLOW"] == "tensorflow[and-cuda]"
            assert service["read_only"] is True


@pytest.mark.timeout(180)
@pytest.mark.parametrize("late", ["worker-1", "worker-0"])
def test_a_container_that_starts_20_s_late_is_waited_for(image: Image, tmp_path: Path, late: str) -> None:
    group = Group.generated(tmp_path, f"tfmplate{os.getpid()}", "configs/smoke.yaml", 2)
    try:
        first = next(name for name in group.names if name != late)
        group("up", "-d", first)
        time.sleep(20)  # its name does not resolve before it is there
        group("up", "-d", late)
        assert group.codes() == [0, 0], group.logs()
        assert f"waiting for 1 of 2 workers: worker {late[-1]} ({late}:2222): its name does not resolve" in group.log(
            first
        )
    finally:
        group.down()


@pytest.mark.timeout(300)
def test_up_gives_0_every_time(image: Image, tmp_path: Path) -> None:
    for attempt in range(3):
        group = Group.generated(tmp_path, f"tfmpagain{os.getpid()}", "configs/smoke.yaml", 3)
        try:
            done = group("up", "--exit-code-from", "worker-0", ok=False)
            assert (done.returncode, group.codes()) == (0, [0, 0, 0]), f"time {attempt}:\n{done.stdout}"
            ends = {name: group.state(name)["State"]["FinishedAt"] for name in group.names}
            assert min(ends, key=lambda name: ends[name]) == "worker-0", f"a worker left before worker 0: {ends}"
        finally:
            group.down()


def test_a_name_with_an_underscore_is_refused_by_name(image: Image) -> None:
    done = run("docker", "run", "--rm", image.name, "worker", "--workers", "worker_0:2222,worker_1:2222", "--index", 0,
               ok=False)  # fmt: skip
    assert done.returncode == 2
    assert 'expected a host name without "_" (underscore)' in done.stdout
    assert "name the host worker-0" in done.stdout


@pytest.mark.parametrize(("limit", "cores"), [("--cpus=1", 1), ("--cpuset-cpus=0", 1), ("--cpus=1.5", 2)])
def test_cores_are_those_of_the_container(image: Image, limit: str, cores: int) -> None:
    out = docker("run", "--rm", limit, image.name, "doctor", "--quick")
    assert re.search(rf"^ok +cores +{min(cores, os.cpu_count() or 1)} of ", out, re.M), out
    plan = docker("run", "--rm", limit, image.name, "train", "--workers", 1, "--dry-run")
    threads = re.search(r"^  0     worker 0  127\.0\.0\.1:\d+ +1 +256 +(\d+) ", plan, re.M)
    assert threads is not None, plan
    assert int(threads[1]) == min(cores, os.cpu_count() or 1)


def test_little_shared_memory_is_warned_of_where_gpus_need_it(image: Image) -> None:
    gpus = docker("run", "--rm", "-e", "CUDA_VISIBLE_DEVICES=0,1", image.name, "doctor", "--quick", "--quiet")
    assert "warn  /dev/shm" in gpus
    assert "64 MiB, too small for 2 GPUs" in gpus
    assert "docker run --shm-size=1g" in gpus
    assert "/dev/shm" not in docker("run", "--rm", image.name, "doctor", "--quick", "--quiet")


def test_output_comes_at_once_and_survives_its_process(image: Image) -> None:
    program = "import os, time; print('hello', os.getpid()); time.sleep(600)"
    container = docker("run", "-d", image.name, "launch", "-n", 2, "--", "python", "-c", program).strip()
    try:
        began = time.monotonic()
        while docker("logs", container).count("hello") < 2:
            assert time.monotonic() - began < 5, docker("logs", container)
            time.sleep(0.1)
        pid = re.findall(r"hello (\d+)", docker("logs", container))[0]
        docker("exec", container, "python", "-c", f"import os; os.kill({pid}, 9)")
        assert docker("wait", container).strip() == "137"
        assert len(re.findall(r"^\[worker [01]\] hello", docker("logs", container), re.M)) == 2
    finally:
        docker("rm", "-fv", container)
