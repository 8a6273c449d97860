"""What the benchmark programs share: running tfmp and its peers, medians with their range, Markdown rows."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Steady figures are medians of the epochs after the first. At 32 and 256 these are long enough for tfmp to compile.
EPOCHS = {16: 4, 32: 4, 128: 30, 256: 30, 512: 30, 1024: 12, 2048: 12, 4096: 12}
#: What peers need for a steady figure.
PEER_EPOCHS = {32: 3, 256: 6, 2048: 10}
_PLAIN = ("-q", "--set", "run.checkpoints=false", "--set", "run.tensorboard=false", "--learning-rate", "0.001")
ENVIRON = {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

Measure = Callable[[], float]


class PeerFailed(Exception):
    """A contender ended with an error; the message is the end of what it wrote."""


def tfmp_command(batch: int, folder: str, *arguments: str) -> list[str]:
    """The command of one run in ``folder``."""
    fixed = ("--epochs", str(EPOCHS[batch]), "--batch-size", str(batch))
    return [sys.executable, "-m", "tfmp", "train", *fixed, *_PLAIN, *arguments, "--run-dir", f"{folder}/run"]


def tfmp(batch: int, *arguments: str) -> Measure:
    """``tfmp train``: samples/s, the median of the epochs after the first."""

    def run() -> float:
        with finished_run(batch, *arguments) as folder:
            return steady(folder)

    return run


@contextmanager
def finished_run(batch: int, *arguments: str) -> Iterator[Path]:
    """A run that has ended; its folder is removed afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        checked(tfmp_command(batch, scratch, *arguments))
        yield Path(scratch) / "run"


def without_communication(batch: int) -> Measure:
    """Two lone workers at once, half the batch each on a core of its own: the same step without an exchange."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            half = ("--set", "data.limit_train=30000", "--workers", "1", "--set", "cluster.threads_per_worker=1")
            epochs = ("--epochs", str(EPOCHS[batch]))
            processes = [
                subprocess.Popen(
                    ["taskset", "-c", str(core), *tfmp_command(batch // 2, folder, *half, *epochs)], env=ENVIRON
                )
                for core, folder in enumerate((first, second))
            ]
            codes = [process.wait() for process in processes]
            if any(codes):
                raise PeerFailed("a run without communication failed")
            return sum(steady(Path(folder) / "run") for folder in (first, second))

    return run


def program(python: str, name: str, *arguments: object) -> Measure:
    """A peer's program beside this file, which prints JSON: its samples/s."""
    return lambda: float(program_result(python, name, *arguments)["samples_per_second"])


def program_result(python: str, name: str, *arguments: object) -> dict[str, Any]:
    """What a peer's program printed."""
    printed = checked([python, str(HERE / name), *map(str, arguments)])
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def checked(command: Sequence[str]) -> str:
    """Run a command and return what it printed.

    Raises:
        PeerFailed: It ended with an error.
    """
    done = subprocess.run(command, capture_output=True, text=True, env={**ENVIRON, "TF_CPP_MIN_LOG_LEVEL": "2"})
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PeerFailed(f"{' '.join(command)}: exit code {done.returncode}\n{tail}")
    return done.stdout


def steady(folder: Path) -> float:
    """A run's samples/s: the median of the epochs after the first."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(float(line["samples_per_second"]) for line in lines[1:])


def has_torch(python: str) -> bool:
    """Whether that interpreter can import PyTorch."""
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def interleaved(contenders: Mapping[str, Measure], rounds: int) -> dict[str, list[float | None]]:
    """Measure each contender once a round, one after the other; ``None`` where it failed, which is said."""
    found: dict[str, list[float | None]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, measure in contenders.items():
            try:
                found[name].append(measure())
            except PeerFailed as error:
                found[name].append(None)
                print(f"round {number + 1}: {name} failed: {error}", file=sys.stderr, flush=True)
    return found


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of what succeeded."""
    good = [value for value in values if value is not None]
    return statistics.median(good) if good else None


def ratio_text(own: Sequence[float | None], other: Sequence[float | None]) -> str:
    """The median of the rounds' ratios and their range; how many rounds failed, where some did."""
    ratios = [a / b for a, b in zip(own, other, strict=True) if a is not None and b is not None]
    if not ratios:
        return "failed in every round"
    text = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    failed = len(own) - len(ratios)
    return f"{text}, {failed} of {len(own)} rounds failed" if failed else text
