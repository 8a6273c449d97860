"""The ports of a run that was killed serve the next one at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.worker_support import LONG, SHORT, free_ports
from tests.conftest import ROOT, run_program


def test_a_second_run_on_the_ports_of_one_whose_workers_were_killed(tmp_path: Path) -> None:
    port = next(port for port in free_ports(20) if port % 2 == 0)
    more = ("--workers", "2", "--collective", "ring", "--base-port", str(port))
    off = ("--set", "cluster.private_network=off", "--max-restarts", "0")
    out = tmp_path / "out.txt"
    with out.open("wb") as file:
        first = subprocess.Popen(
            [sys.executable, "-m", "tfmp", "train", *LONG, *more, *off, "--run-dir", str(tmp_path / "one")],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        deadline_s = time.monotonic() + 90
        while "epoch 2/" not in out.read_text():
            assert time.monotonic() < deadline_s, out.read_text()
            time.sleep(0.1)
        workers = [pid for pid in map(int, _pids()) if _is_worker_of(pid, first.pid)]
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        assert first.wait(20) == 137, out.read_text()
    finally:
        first.kill()
        first.wait(10)
    began = time.monotonic()
    second = run_program("train", *SHORT, *more, *off, "--run-dir", tmp_path / "two")
    assert second.code == 0, second.text
    assert f"127.0.0.1:{port}" in (tmp_path / "two" / "events.jsonl").read_text()
    assert time.monotonic() - began < 30


def _pids() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _is_worker_of(pid: int, launcher: int) -> bool:
    try:
        name, parent = Path(f"/proc/{pid}/comm").read_text(), _parent(pid)
        return name.startswith("tfmp-worker-") and _parent(parent) == launcher
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
