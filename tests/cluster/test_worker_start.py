"""Starting a cluster of hosts: who is missing is named with the reason, who disagrees with both values, in seconds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.cluster.worker_support import SHORT, Launcher, free_ports, launchers
from tests.conftest import ROOT, Done


@contextmanager
def mute_listener(port: int) -> Iterator[None]:
    """A program that accepts one connection, reads, says nothing, and ends with it."""
    server = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        try:
            sock, _ = server.accept()
        except OSError:
            return
        server.close()
        with sock:
            while sock.recv(4096):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.close()


@contextmanager
def black_hole(port: int) -> Iterator[None]:
    """A port whose queue of connections is full: the kernel drops what comes, as a firewall does."""
    with socket.create_server(("127.0.0.1", port), backlog=0), ExitStack() as waiting:
        for _ in range(3):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        time.sleep(0.1)
        yield


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        ("127.0.0.1:{port}", "connection refused"),
        ("no-such-host.invalid:{port}", "its name does not resolve"),
        ("127.0.0.1:{port}?", "no answer (timed out)"),
        ("127.0.0.1:{port}!", "answers but did not join"),
    ],
    ids=["refused", "unresolvable", "black hole", "foreign"],
)
def test_a_missing_worker_is_named_with_its_address_and_the_reason(tmp_path: Path, peer: str, reason: str) -> None:
    own, other = free_ports(2)
    address = peer.format(port=other).rstrip("?!")
    program = {"!": mute_listener, "?": black_hole}.get(peer[-1], nullcontext)
    with launchers(tmp_path) as start, program(other):
        missing = _missing(start, f"127.0.0.1:{own}", address)
    assert missing.process.returncode == 1
    assert f"waiting for 1 of 2 workers: worker 1 ({address}): {reason}" in missing.text
    block = missing.text[missing.text.index("error: ") :]
    assert block.startswith(f"error: 1 of 2 workers did not join within 6 s: worker 1 ({address}): {reason}")
    assert f"where: worker 1 ({address})" in block
    assert "worker 0" not in block.split("  try: ")[0]


def _missing(start: Callable[..., Launcher], first: str, address: str) -> Launcher:
    one = start("w0", *SHORT, "--workers", f"{first},{address}", "--index", 0, "--start-timeout", 6)
    one.wait(20)
    assert time.monotonic() - one.began_s < 6 + 5
    return one


def test_a_missing_leader_is_named_by_the_others(tmp_path: Path) -> None:
    ports = free_ports(3)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    with launchers(tmp_path) as start:
        one = start("w1", *SHORT, "--workers", addresses, "--index", 1, "--start-timeout", 3)
        assert one.wait(20) == 1
    assert f"did not join within 3 s: worker 0 (127.0.0.1:{ports[0]}): connection refused" in one.text


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_at_once(tmp_path: Path, signum: int, code: int) -> None:
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    with launchers(tmp_path) as start:
        one = start("w0", *SHORT, "--workers", addresses, "--index", 0, "--start-timeout", 600)
        one.until("waiting for 1 of 2 workers")
        began = time.monotonic()
        one.send(signum)
        assert one.wait(5) == code
        assert time.monotonic() - began <= 2
    assert one.text.splitlines()[-1].startswith(f"interrupted by {signal.Signals(signum).name}")
    assert "Traceback" not in one.text
    assert not one.folder.exists(), "a run that never began leaves no run folder"


def _pair(
    tmp_path: Path, first: tuple[object, ...], second: tuple[object, ...], ports: list[int]
) -> tuple[Launcher, Launcher]:
    with launchers(tmp_path) as start:
        one = start("w0", *SHORT, *first, "--start-timeout", 60)
        two = start("w1", *SHORT, *second, "--start-timeout", 60)
        codes = one.wait(30), two.wait(30)
    assert codes == (2, 2), one.text + two.text
    assert "epoch 1" not in one.text + two.text
    assert not one.folder.exists()
    assert not two.folder.exists()
    return one, two


def test_different_settings_are_named_with_both_values_and_no_step_is_run(tmp_path: Path) -> None:
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    first = ("--workers", addresses, "--index", 0)
    second = ("--workers", addresses, "--index", 1, "--batch-size", 128, "--set", "model.units=[64]")
    for launcher in _pair(tmp_path, first, second, ports):
        assert "model.units: worker 0 has [128], worker 1 has [64]" in launcher.text
        assert "training.batch_size: worker 0 has 256, worker 1 has 128" in launcher.text


@pytest.mark.parametrize("second", ["a,b,c", "b,a"], ids=["longer list", "swapped list"])
def test_different_cluster_lists_are_named(tmp_path: Path, second: str) -> None:
    ports = free_ports(3)
    names = {name: f"127.0.0.1:{port}" for name, port in zip("abc", ports, strict=True)}
    ours = ",".join(names[name] for name in "ab")
    theirs = ",".join(names[name] for name in second.split(","))
    for launcher in _pair(tmp_path, ("--workers", ours, "--index", 0), ("--workers", theirs, "--index", 1), ports):
        assert f"cluster.workers: worker 0 has {ours}, worker 1 has {theirs}" in launcher.text


def test_different_versions_are_named(tmp_path: Path) -> None:
    """The second host has another Keras, as far as its packages' metadata say, which is where versions come from."""
    other = tmp_path / "site" / "keras-9.8.7.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 9.8.7\n")
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    env = {"PYTHONPATH": f"{other.parent}{os.pathsep}{ROOT}"}
    with launchers(tmp_path) as start:
        one = start("w0", *SHORT, "--workers", addresses, "--index", 0)
        two = start("w1", *SHORT, "--workers", addresses, "--index", 1, env=env)
        assert (one.wait(30), two.wait(30)) == (2, 2), one.text + two.text
    for launcher in (one, two):
        ours = importlib.metadata.version("keras")
        assert f"version of Keras: worker 0 has {ours}, worker 1 has 9.8.7" in launcher.text
        assert not launcher.folder.exists(), "no step was run"


def test_the_same_index_twice_leaves_the_first_alone(tmp_path: Path) -> None:
    ports = free_ports(2)
    arguments = ("--workers", ",".join(f"127.0.0.1:{port}" for port in ports), "--start-timeout", 60)
    with launchers(tmp_path) as start:
        one = start("first", *SHORT, *arguments, "--index", 1)
        one.until("waiting for 1 of 2 workers")
        two = start("second", *SHORT, *arguments, "--index", 1)
        assert two.wait(20) == 2
        assert "worker 1 is already taken by another worker" in two.text
        assert f"process {one.process.pid} " in two.text
        assert one.process.poll() is None


def test_a_port_that_another_program_holds_is_named(tmp_path: Path) -> None:
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    with launchers(tmp_path) as start, socket.create_server(("127.0.0.1", ports[0])):
        one = start("w0", *SHORT, "--workers", addresses, "--index", 0)
        assert one.wait(20) == 2
    assert f"port {ports[0]} is in use by another program" in one.text


@pytest.mark.parametrize("index", ["-1", "0.9", "true", "one", ""])
def test_a_wrong_index_is_refused_with_the_range(tfmp: Callable[..., Done], index: str) -> None:
    done = tfmp("worker", "--workers", "a:1,b:1", "--index", index)
    assert done.code == 2
    assert f'expected an index in 0..1, received "{index}"' in done.err
    assert "--index" in done.err
    assert done.seconds < 5


def test_an_index_beyond_the_last_worker_is_refused_with_the_range(tfmp: Callable[..., Done]) -> None:
    done = tfmp("worker", "--workers", "a:1,b:1", "--index", 2)
    assert done.code == 2
    assert done.err == "error: expected an index in 0..1, received 2\n  where: --index\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"task":{"type":"worker","index":0}}', "TF_CONFIG cluster\n"),
        ("[]", "expected a JSON object, received []"),
        ("{'cluster': {}}", "double quotes"),
        ('{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":2}}', "index in 0..1, received 2"),
        ('{"cluster":{"Worker":["a:1"]},"task":{"type":"Worker","index":0}}', "did you mean worker?"),
        ('{"cluster":{"master":["a:1"]},"task":{"type":"master","index":0}}', "name it chief"),
        ('{"cluster":{"worker":["127.0.0.1:1","b:1"]},"task":{"type":"worker","index":0}}', "received loopback"),
    ],
)
def test_a_wrong_tf_config_is_explained(tfmp: Callable[..., Done], text: str, named: str) -> None:
    done = tfmp("worker", env={"TF_CONFIG": text})
    assert done.code == 2
    assert "TF_CONFIG" in done.err
    assert named in done.err
    assert "Traceback" not in done.err


def test_an_empty_tf_config_counts_as_unset_and_is_said(tfmp: Callable[..., Done]) -> None:
    done = tfmp("worker", env={"TF_CONFIG": " "})
    assert done.code == 2
    assert "note: TF_CONFIG is empty, which counts as unset" in done.out
    assert "expected a cluster, found none" in done.err


def test_a_dry_run_prints_each_workers_tf_config_and_command(tfmp: Callable[..., Done]) -> None:
    done = tfmp("worker", *SHORT, "--workers", "h0:2222,h1:2222", "--epochs", 3, "--dry-run")
    assert done.code == 0, done.text
    config = '{"cluster": {"worker": ["h0:2222", "h1:2222"]}, "task": {"type": "worker", "index": 1}}'
    assert f"worker 1: TF_CONFIG={config}" in done.out
    command = "tfmp worker configs/smoke.yaml --workers h0:2222,h1:2222 --epochs 3 --set training.steps_per_epoch=4"
    assert re.search(rf"^  h1: {re.escape(command)} .*--index 1$", done.out, re.M)


@pytest.mark.parametrize("by", ["--workers", "TF_CONFIG"])
def test_the_printed_command_of_each_host_is_that_workers(tfmp: Callable[..., Done], by: str) -> None:
    """Typed into a shell, with --dry-run behind it, each gives the same plan."""
    config = {"cluster": {"worker": ["h0:2222", "h1:2222"]}, "task": {"type": "worker", "index": 0}}
    env = {"TF_CONFIG": json.dumps(config)} if by == "TF_CONFIG" else {}
    how = () if env else ("--workers", "h0:2222,h1:2222")
    first = tfmp("worker", *SHORT, *how, "--set", "run.name=it's mine", "--dry-run", env=env)
    assert first.code == 0, first.text
    printed = dict(re.findall(r"^  (h[01]): (.*tfmp worker .*)$", first.out, re.M))
    assert list(printed) == ["h0", "h1"]
    for rank, command in enumerate(printed.values()):
        python = command.replace("tfmp worker", f"{sys.executable} -m tfmp worker", 1)
        typed = subprocess.run(
            ["bash", "-c", f"{python} --dry-run"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert typed.returncode == 0, typed.stderr
        assert f"worker {rank} of" in typed.stdout.splitlines()[0]
        assert _what_all_print(typed.stdout) == _what_all_print(first.out)


def _what_all_print(text: str) -> list[str]:
    """Settings, TF_CONFIGs and commands; without what is each host's own: its threads, and which worker it is."""
    return [line for line in text.splitlines()[1:] if not re.match(r"  [01]  +worker ", line)]


def test_an_evaluator_has_nothing_to_do(tfmp: Callable[..., Done]) -> None:
    cluster = {"worker": ["h0:2222", "h1:2222"], "evaluator": ["h2:2222"]}
    env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})}
    done = tfmp("worker", *SHORT, env=env)
    assert (done.code, done.err) == (0, "")
    assert "evaluator: nothing to do" in done.out


def test_a_slurm_step_is_planned_without_gpus_or_nvidia_smi(tfmp: Callable[..., Done]) -> None:
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = tfmp("worker", *SHORT, "--dry-run", env=env)
    assert done.code == 0, done.text
    assert "worker 0: TF_CONFIG" in done.out
    port = 16384 + 7 * 64
    assert f'{{"worker": ["n1:{port}", "n2:{port}"]}}' in done.out
    assert "replicas             2 on CPU" in done.out
    assert "in the allocation: srun -n 2 " in done.out


def test_no_tensorflow_is_imported_where_nothing_is_started() -> None:
    code = (
        "import sys; from tfmp.cli.app import _exit_code\n"
        "code = _exit_code(['worker', '--workers', 'a:1,b:1', '--dry-run', '-q'])\n"
        "sys.exit(code or any(name.split('.')[0] in ('tensorflow', 'keras', 'numpy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60).returncode == 0
