"""What a benchmark ran on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tfmp.bench.machine import busy, busy_s, crowded, describe_machine, own_s, versions


def test_the_machine_is_described(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fine CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: other\n")
    found = describe_machine(2, cpuinfo)
    assert (found["cpu"], found["cores"]) == ("A Fine CPU @ 2 GHz", 2)
    assert describe_machine(2, tmp_path / "none")["cpu"] == found["architecture"]
    assert {"tfmp", "python", "keras", "numpy"} <= versions().keys()
    assert busy(0.49, 2) is None
    assert busy(0.5, 2) == "this machine is busy (load 0.5 on 2 cores): expect noise and fewer clear results"


def test_cpu_time_of_others_is_what_is_neither_idle_nor_ours() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    busy_before_s, own_before_s, began = busy_s(cpus), own_s(), time.monotonic()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    wall_s, ours_s = time.monotonic() - began, own_s() - own_before_s
    assert 0.48 <= ours_s < 1.5  # counted in hundredths
    # The kernel counts in hundredths of a second.
    assert ours_s - 0.1 <= busy_s(cpus) - busy_before_s <= len(cpus) * wall_s + 0.1


def test_other_programs_are_named_from_a_tenth_of_the_machine_on() -> None:
    assert crowded([], 2) is None
    assert crowded([0.0, 0.2, 1.9], 2) is None
    assert crowded([0.0, 0.5, 1.9], 2) == (
        "other programs kept 0.5 of 2 cores busy during the runs (at most 1.9): expect noise"
    )
