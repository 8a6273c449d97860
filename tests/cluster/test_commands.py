"""Commands as processes of their own: what they import, how fast they answer, where their output goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.unit.bench.support import PLAN, everything
from tfmp.bench.analysis import analyse
from tfmp.bench.plot import save_plot


def test_nothing_before_a_worker_imports_tensorflow() -> None:
    """One process for all of them: what one has imported stays."""
    expected = {
        "--help": 0,
        "--version": 0,
        "train --help": 0,
        "train --set training.learing_rate=0.1": 2,
        "train no-such-file.yaml": 2,
        "evaluate no-such-run": 2,
        "bench --workers 2,x": 2,
        "bench --workers 8 --batch-size 4": 2,
        "train --workers 2 --dry-run": 0,
    }
    code = (
        "import json, sys; from tfmp.cli.app import _exit_code\n"
        "found = {}\n"
        f"for line in {list(expected)!r}:\n"
        "    code = _exit_code(line.split())\n"
        "    found[line] = code, sorted({name.split('.')[0] for name in sys.modules})\n"
        "print('FOUND', json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    found = json.loads(done.stdout.rsplit("FOUND ", 1)[1])
    assert {line: code for line, (code, _) in found.items()} == expected
    for line, (_, modules) in found.items():
        assert not {"tensorflow", "keras"} & set(modules), line
    assert not {"pydantic", "rich", "numpy", "yaml"} & set(found["--help"][1])


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m tfmp train --dry-run --workers 2 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "Traceback" not in done.stderr


def test_quick_is_quick_and_quiet_says_nothing_of_what_is_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfmp", "doctor", "--quick", "--quiet", "--run-dir", str(tmp_path / "run")]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok" not in done.stdout.split()
    assert time.monotonic() - began < 3
    (tmp_path / "run").touch()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1
    assert "expected a folder, found a file" in done.stdout


def test_the_child_keeps_to_its_cpus_and_does_not_outlive_its_parent() -> None:
    one = sorted(os.sched_getaffinity(0))[-1]
    code = "import os; print(sorted(os.sched_getaffinity(0)))"

    def child(parent: int, cpus: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tfmp.bench.child", str(parent), cpus, "launch", "-n", "1", "--"]
        return subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert child(os.getpid(), str(one)).stdout == f"[worker 0] [{one}]\n"
    assert child(os.getpid(), "-").stdout == f"[worker 0] {sorted(os.sched_getaffinity(0))}\n"
    orphan = child(1, "-")
    assert (orphan.returncode, orphan.stdout) == (143, "")


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    save_plot(tmp_path / "bench.png", PLAN, analyse(PLAN, everything(), 0.975))
    assert (tmp_path / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    save_plot(tmp_path / "little.png", PLAN, analyse(PLAN, everything()[:1], 0.975))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["bench.png", "little.png"]
