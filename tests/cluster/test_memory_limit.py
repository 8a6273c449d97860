"""Workers that the kernel kills because their control group has used up its memory: the memory evidence says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

_ROOT_GROUP = Path("/sys/fs/cgroup")
_MIB = 1024 * 1024


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of ours that may hold so much, of version 1 or 2; skips where none can be made."""
    version_1 = (_ROOT_GROUP / "memory" / "memory.limit_in_bytes").exists()
    parent = _ROOT_GROUP / "memory" if version_1 else _ROOT_GROUP
    folder = parent / f"tfmp-test-{os.getpid()}"
    try:
        if not version_1:
            (parent / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made in {parent}: {error.strerror}")
    try:
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version_1 else ("memory.max",)
        for name in names:
            if (folder / name).exists():
                (folder / name).write_text(str(limit_bytes))
        if not version_1 and (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0")
        yield folder
    finally:
        deadline_s = time.monotonic() + 5
        while folder.exists() and time.monotonic() < deadline_s:
            try:
                folder.rmdir()
            except OSError:  # its last process is not gone yet
                time.sleep(0.05)


def run_in(group: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """``tfmp`` as a member of the group from its first instruction."""
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    command = ("sh", "-c", enter, "sh", sys.executable, "-m", "tfmp", *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_a_launched_program_that_eats_too_much_is_out_of_memory() -> None:
    eats = "held = []\nwhile True:\n    held.append(b'x' * (8 << 20)); time.sleep(0.02)"
    code = f"import os, time\nif os.environ['RANK'] == '1':\n    exec({eats!r})\ntime.sleep(600)"
    limit_bytes = 300 * _MIB
    with memory_group(limit_bytes) as group:
        done = run_in(group, "launch", "-n", 2, "--", sys.executable, "-S", "-c", code)
    assert done.returncode == 137, done.stderr
    assert "worker 1 failed first: signal 9 (SIGKILL)" in done.stderr
    assert "cause of death: out of memory" in done.stderr
    assert "memory limit of its control group: 300 MiB; out-of-memory kills: 1" in done.stderr
    (peak_mib,) = re.findall(r"peak (\d+) MiB", done.stderr)
    assert 100 < int(peak_mib) <= 300


def test_a_training_that_runs_out_of_memory_says_so_and_ends_the_same(tmp_path: Path) -> None:
    folder, limit_bytes = tmp_path / "run", 2048 * _MIB
    arguments = ("--workers", 2, "--epochs", 1, "--batch-size", 100, "--set", "data.limit_train=1000",
                 "--set", "data.limit_validation=100", "--set", "training.steps_per_execution=2",
                 "--inject-fault", "oom@rank=1,step=4", "--run-dir", folder)  # fmt: skip
    with memory_group(limit_bytes) as group:
        done = run_in(group, "train", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (restart,) = [event for event in events if event["event"] == "restart"]
    assert (restart["cause"], restart["culprits"]) == ("signal", [1])
    memory_evidence = restart["memory_evidence"]
    assert memory_evidence["conclusion"] == "out of memory"
    assert memory_evidence["limit_bytes"] == limit_bytes
    assert memory_evidence["oom_kills_after"] - memory_evidence["oom_kills_before"] == 1
    sizes = [sample["bytes"] for sample in memory_evidence["resident_curve"]]
    assert sizes[-1] > sizes[0]
    assert max(sizes) <= limit_bytes
