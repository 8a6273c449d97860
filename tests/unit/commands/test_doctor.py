"""``tfmp doctor``: what is well, what is not, and the fix; nothing imports TensorFlow."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tfmp.cli.app import _exit_code
from tfmp.cluster.spec import Address
from tfmp.commands.doctor import checkup
from tfmp.commands.doctor.line import Line, render
from tfmp.commands.doctor.machine import (
    cores_line,
    folder_line,
    machine_lines,
    memory_line,
    port_line,
    python_line,
    shared_memory_line,
    versions_line,
)
from tfmp.commands.doctor.network import cluster_lines, peer_line, proxy_line, reach
from tfmp.commands.doctor.processes import WorkerProcess, find_workers, workers_line
from tfmp.errors import UsageError
from tfmp.rendezvous.peer_status import Kind, PeerStatus

MIB = 1024**2
GIB = 1024**3


def test_a_fix_stands_below_its_line() -> None:
    lines = [Line("ok", "a", "well"), Line("fail", "long name", "ill", "this")]
    assert render(lines) == ("ok    a          well\nfail  long name  ill\n                 try: this")


def test_python_and_system() -> None:
    assert python_line((3, 12, 1), "Linux") == Line("ok", "Python", "3.12.1 on Linux")
    assert python_line((3, 14, 0), "Linux").what == "3.14.0 on Linux: expected 3.10 to 3.13"
    assert python_line((3, 12, 1), "Darwin").status == "fail"


@pytest.mark.parametrize(
    ("tensorflow", "keras", "fix"),
    [
        ("2.18.0", "3.10.0", None),
        ("2.21.0rc1", "4.0.0", None),
        ("2.17.1", "3.15.1", "pip install 'tensorflow>=2.18'"),
        ("2.21.0", "3.9.2", "pip install 'keras>=3.10'"),
        ("not installed", "3.15.1", "pip install 'tensorflow>=2.18'"),
    ],
)
def test_versions(tensorflow: str, keras: str, fix: str | None) -> None:
    line = versions_line({"tfmp": "0.1.0", "TensorFlow": tensorflow, "Keras": keras, "Python": "3.11"})
    assert (line.status, line.fix) == ("ok" if fix is None else "fail", fix)
    assert line.what.startswith(f"tfmp 0.1.0, TensorFlow {tensorflow}, Keras {keras}")


def test_cores_say_what_limits_them() -> None:
    assert cores_line(8, 8, 8).what == "8 of 8"
    assert cores_line(2, 4, 8).what == "2 of 8 (CPU affinity allows 4, its cgroup has a quota)"


def test_little_memory_is_warned_of() -> None:
    assert memory_line(3 * GIB, None) == Line("ok", "memory", "3.0 GiB available")
    assert memory_line(3 * GIB, 2 * GIB).what == "3.0 GiB available, limit 2.0 GiB"
    for available, limit in ((300 * MIB, None), (3 * GIB, 300 * MIB)):
        assert memory_line(available, limit).status == "warn"


def test_shared_memory_matters_to_several_gpus_only() -> None:
    assert shared_memory_line(64 * MIB, ()) == Line("ok", "/dev/shm", "64 MiB")
    assert shared_memory_line(64 * MIB, ("0",)).status == "ok"
    assert shared_memory_line(64 * MIB, ("0", "1")) == Line(
        "warn",
        "/dev/shm",
        "64 MiB, too small for 2 GPUs",
        "docker run --shm-size=1g, or shm_size: 1g in a Compose file",
    )
    assert shared_memory_line(GIB, ("0", "1")).status == "ok"


def test_a_machine_is_read_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1048576 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("536870912\n")
    lines = {line.name: line for line in machine_lines({"CUDA_VISIBLE_DEVICES": "1,1"}, tmp_path)}
    assert lines["memory"].what == "1.0 GiB available, limit 512 MiB"
    assert lines["/dev/shm"].what == "missing"
    assert lines["GPUs"].status == "fail"


def test_a_port_can_be_had() -> None:
    assert port_line().status == "ok"


def test_folders(tmp_path: Path) -> None:
    assert folder_line("run folder", tmp_path, "fix").what.startswith(f"{tmp_path}: ")
    made = folder_line("run folder", tmp_path / "a/b", "fix")
    assert made.what.startswith(f"{tmp_path}/a/b, to be created in {tmp_path}: ")
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    assert folder_line("run folder", file / "x", "fix") == Line(
        "fail", "run folder", f"{file}/x, to be created in {file}: expected a folder, found a file", "fix"
    )
    proc = folder_line("run folder", Path("/proc"), "fix")
    assert (proc.status, proc.fix) == ("fail", "fix")
    assert "cannot write to it" in proc.what


def test_proxies() -> None:
    assert proxy_line({}) == Line("ok", "proxies", "none set")
    assert proxy_line({"HTTPS_PROXY": "http://p", "http_proxy": "", "no_proxy": "x"}).what == (
        "HTTPS_PROXY set; workers bypass them"
    )


@pytest.mark.parametrize(
    ("answer", "own", "status", "what"),
    [
        ("10.0.0.1", False, "ok", "h1:2222: something is listening at 10.0.0.1"),
        ("10.0.0.1", True, "warn", "h1:2222, this host: its port is in use"),
        (PeerStatus(Kind.REFUSED), False, "ok", "h1:2222: the host is up, nothing is listening: not started yet"),
        (PeerStatus(Kind.UNRESOLVED, "unknown"), False, "fail", "h1:2222: its name does not resolve (unknown)"),
        (PeerStatus(Kind.NO_ANSWER, "timed out"), False, "fail", "h1:2222: no answer (timed out)"),
    ],
)
def test_a_peer(answer: PeerStatus | str, own: bool, status: str, what: str) -> None:
    line = peer_line(1, "h1:2222", answer, own)
    assert (line.status, line.name, line.what) == (status, "worker 1", what)
    assert (line.fix is None) == (status == "ok")


def test_a_cluster_is_asked() -> None:
    with socket.socket() as listening, socket.socket() as closed:
        for sock in (listening, closed):
            sock.bind(("127.0.0.1", 0))
        listening.listen()
        addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (listening, closed)]
        lines = cluster_lines(addresses, "here")
        (unresolved,) = cluster_lines(["no-such-host.invalid:1"], "here")
    assert [(line.status, line.what.partition(": ")[2]) for line in lines] == [
        ("ok", "something is listening at 127.0.0.1"),
        ("ok", "the host is up, nothing is listening: not started yet"),
    ]
    assert (unresolved.status, unresolved.name) == ("fail", "worker 0")
    with pytest.raises(UsageError, match="underscore"):
        cluster_lines(["worker_1:1"], "here")


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (socket.gaierror(-2, "Name or service not known"), PeerStatus(Kind.UNRESOLVED, "name or service not known")),
        (UnicodeError("label too long"), PeerStatus(Kind.UNRESOLVED)),
        (ConnectionRefusedError(), PeerStatus(Kind.REFUSED)),
        (TimeoutError("timed out"), PeerStatus(Kind.NO_ANSWER, "timed out")),
        (OSError(113, "No route to host"), PeerStatus(Kind.NO_ANSWER, "no route to host")),
    ],
)
def test_what_comes_of_a_connection(monkeypatch: pytest.MonkeyPatch, error: Exception, finding: PeerStatus) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert reach(Address("h1", 1)) == finding


def test_workers_of_this_user_are_found_by_name_and_state(tmp_path: Path) -> None:
    stats = {30: "(tfmp-worker-1) S 1 30", 4: "(tfmp-worker-0) T 1 4", 5: "(a) b) S 1 5", 6: "(tfmp) S"}
    for pid, stat in stats.items():
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} {stat}")
    (tmp_path / "proc/7").mkdir()
    found = find_workers(tmp_path)
    assert found == [WorkerProcess(4, 0, "T"), WorkerProcess(30, 1, "S")]
    assert find_workers(tmp_path, os.getuid() + 1) == []
    assert workers_line(found) == Line("fail", "workers", "stopped: worker 0 (pid 4)", "kill -CONT 4")
    assert workers_line(found[1:]).what == "running: worker 1 (pid 30)"
    assert workers_line([]) == Line("ok", "workers", "none running")


def test_tensorflow_is_imported_elsewhere_and_the_cluster_asked_unless_quick(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkup, "tensorflow_line", lambda: Line("ok", "TensorFlow", "imported"))
    assert _exit_code(["doctor", "--workers", "no-such-host.invalid:1"]) == 1
    out = capsys.readouterr().out
    assert "fail  worker 0    no-such-host.invalid:1: its name does not resolve" in out
    assert "ok    TensorFlow  imported" in out
    assert _exit_code(["doctor", "--quick", "--workers", "no-such-host.invalid:1"]) == 0
    out = capsys.readouterr().out
    assert "TensorFlow  imported" not in out
    assert "no-such-host" not in out


def test_a_tensorflow_that_does_not_import_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "_PROGRAM", "raise ImportError('no library here')")
    line = checkup.tensorflow_line()
    assert (line.status, line.what) == ("fail", "cannot be imported: ImportError: no library here")
