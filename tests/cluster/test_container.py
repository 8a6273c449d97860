"""`tfmp train` as the first process of a container (a PID namespace): it reaps, forwards, and leaves a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.test_train_faults import descendants_of, epochs_done, wait_until
from tests.conftest import ROOT
from tfmp.errors import EXIT_TERMINATED

_UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


def zombies_of(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for one in process.children():
        with suppress(psutil.NoSuchProcess):  # gone since it was listed
            if one.status() == psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def name_of(process: psutil.Process) -> str | None:
    try:
        return process.name()
    except psutil.NoSuchProcess:  # gone since it was listed
        return None


def test_the_first_process_of_a_container_reaps_and_forwards(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    if subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    folder = tmp_path / "run"
    arguments = ("--workers", 2, "--epochs", 1000, "--set", "data.limit_train=5000", "--set",
                 "data.limit_validation=100", "--run-dir", folder)  # fmt: skip
    outer = subprocess.Popen(
        [*_UNSHARE, "--", sys.executable, "-m", "tfmp", "train", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, "TFMP_TEST_MARKER": str(folder)},
    )  # fmt: skip
    try:
        assert wait_until(lambda: epochs_done(folder) >= 1, 60)
        (first,) = psutil.Process(outer.pid).children()
        assert first.pid != 1
        assert Path(f"/proc/{first.pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == "1"

        def sleeps() -> bool:
            return any(name_of(one) == "sleep" for one in first.children())

        # As `docker exec` does: a process whose parent is gone when it ends. A zombie keeps its name.
        enter = ["nsenter", "-t", str(first.pid), "-p", "-m", "sh", "-c", "sleep 3 &"]
        subprocess.run(enter, check=True, capture_output=True)
        assert wait_until(sleeps, 3)
        assert wait_until(lambda: not sleeps(), 3 + 2)

        next(one for one in descendants_of(str(folder)) if name_of(one) == "tfmp-worker-1").kill()
        assert wait_until(lambda: (folder / "events.jsonl").read_text().count('"event": "first_step"') == 4, 30)
        assert wait_until(lambda: not zombies_of(first), 2)

        began_s = time.monotonic()
        first.send_signal(signal.SIGTERM)
        out, _ = outer.communicate(timeout=20)
        assert time.monotonic() - began_s <= 6
    finally:
        outer.kill()  # and with it the whole namespace
        outer.communicate()
    assert outer.returncode == EXIT_TERMINATED, out
    assert "interrupted by SIGTERM" in out
    assert "Traceback" not in out
    assert list((folder / "checkpoints").glob("step-*.npz"))
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert wait_until(lambda: not descendants_of(str(folder)), 1)
