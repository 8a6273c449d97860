"""From Enter: seconds to the first step and to an accuracy, and the memory, beside one worker and Keras.

    python benchmarks/startup.py [--rounds 5] [--accuracy 0.975]

Memory is the sum of the proportional set sizes (PSS: shared pages counted once in all) of the launcher and all its
processes, the largest of what was seen five times a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from support import ENVIRON, PeerFailed, interleaved, median_of, program_result, ratio_text, tfmp_command


def seconds_to_first_step(workers: int) -> float:
    """Of ``tfmp train``, from Enter to the end of the first execution."""
    with tempfile.TemporaryDirectory() as scratch:
        _wait(_start(scratch, "--workers", str(workers), "--epochs", "1"))
        summary = json.loads((Path(scratch) / "run" / "summary.json").read_text())
        return float(summary["seconds_to_first_step"])


def seconds_to_accuracy(accuracy: float) -> float:
    """Of ``tfmp train`` with two workers and default settings: from Enter to the end of the first epoch with it."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.time()
        _wait(_start(scratch, "--workers", "2", "--epochs", "5", "--learning-rate", "0.008"))
        for line in (Path(scratch) / "run" / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "epoch" and event["val_accuracy"] >= accuracy:
                return float(event["time"]) - began
    raise PeerFailed(f"tfmp did not reach {accuracy}")


def keras_seconds_to_accuracy(accuracy: float) -> float:
    """The same of the classic listing, batch 32."""
    began = time.time()
    for reached_s, value in program_result(sys.executable, "keras_fit.py", 32, 10)["reached"]:
        if value >= accuracy:
            return float(reached_s) - began
    raise PeerFailed(f"the classic listing did not reach {accuracy}")


def memory_mb(workers: int) -> float:
    """The largest sum of PSS while ``tfmp train`` trains, in MB."""
    with tempfile.TemporaryDirectory() as scratch:
        process = _start(scratch, "--workers", str(workers), "--epochs", "10")
        most_bytes = 0
        while process.poll() is None:
            with suppress(psutil.Error):
                launcher = psutil.Process(process.pid)
                most_bytes = max(most_bytes, sum(map(_pss_bytes, (launcher, *launcher.children(recursive=True)))))
            time.sleep(0.2)
        _wait(process)
        return most_bytes / 1e6


def _pss_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _start(scratch: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(tfmp_command(256, scratch, *arguments), env=ENVIRON)


def _wait(process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        raise PeerFailed("tfmp train failed")


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accuracy", type=float, default=0.975)
    options = parser.parse_args()
    goal = options.accuracy
    rows = [
        (
            f"seconds from Enter to val_accuracy {goal}",
            ("tfmp, 2 workers, default settings (batch 256)", lambda: seconds_to_accuracy(goal)),
            ("classic listing, batch 32", lambda: keras_seconds_to_accuracy(goal)),
        ),
        (
            "seconds from Enter to the first step",
            ("4 workers", lambda: seconds_to_first_step(4)),
            ("1 worker", lambda: seconds_to_first_step(1)),
        ),
        ("MB of memory", ("4 workers", lambda: memory_mb(4)), ("1 worker", lambda: memory_mb(1))),
    ]
    print("| what | first | second | first to second |\n| --- | --- | --- | --- |", flush=True)
    for what, (name, measure), (other_name, other_measure) in rows:
        found = interleaved({name: measure, other_name: other_measure}, options.rounds)
        first, second = (f"{one}: {median_of(found[one]) or 0:.1f}" for one in (name, other_name))
        print(f"| {what} | {first} | {second} | {ratio_text(found[name], found[other_name])} |", flush=True)


if __name__ == "__main__":
    main()
