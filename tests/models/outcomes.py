"""What each program comes to on several workers, beside one process of plain Keras: run, compare, describe.

``python -m tests.models.outcomes > docs/programs.md`` runs all of them, which takes some ten minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import ROOT

MODES = {"2 workers": ("workers", 2), "3 workers": ("workers", 3), "2 devices": ("mirrored", 0)}
_ABOUT = """\
Small Keras programs (`tests/models/programs.py`), each trained in one process of plain Keras, and with the bridge on 2
and 3 workers and on 2 devices of a MirroredStrategy. Float64, two epochs of 29 samples in batches of 8, so that the
last batch is short and uneven. *Equal*: weights, loss and metrics of every epoch agree to 1e-8.
`python -m tests.models.outcomes > docs/programs.md` writes this page.
"""
#: In float64.
EQUAL = 1e-8


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        error: Its error; ``None`` if it trained.
        difference: The largest absolute difference to plain Keras in a final weight.
        logs_difference: The same in the loss and the metrics of an epoch.
        log: The name of that value.
    """

    error: str | None = None
    difference: float = 0.0
    logs_difference: float = 0.0
    log: str = ""

    @property
    def is_equal(self) -> bool:
        return self.error is None and max(self.difference, self.logs_difference) <= EQUAL

    def describe(self) -> str:
        """A cell of the table."""
        if self.error is not None:
            return "refused: " + self.error.partition("error: ")[2].partition("\n")[0]
        if self.is_equal:
            return "equal"
        return f"differs: weights {self.difference:.0e}, {self.log} {self.logs_difference:.0e}"


def run(mode: str, workers: int, folder: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Run programs in one start of the processes; return what each left, by name."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.models.run", mode, str(folder), *names]
    if workers:
        command = [sys.executable, "-m", "tfmp", "launch", "-n", str(workers), "--", *command]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=900)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def compare(plain: dict[str, Any], other: dict[str, Any]) -> Outcome:
    """Compare what a program left in one process and elsewhere."""
    if "error" in other or "error" in plain:
        return Outcome(error=other.get("error", f"plain Keras: {plain.get('error')}"))
    pairs = list(zip(plain["weights"], other["weights"], strict=True))
    difference = max(_largest(one, two) for one, two in pairs)
    if len(plain["logs"]) != len(other["logs"]):
        return Outcome(difference=difference, logs_difference=float("inf"), log="the number of epochs")
    found = {"": 0.0}
    for one, two in zip(plain["logs"], other["logs"], strict=True):
        for name in one.keys() | two.keys():
            both = name in one and name in two
            found[name] = max(found.get(name, 0.0), _largest(one[name], two[name]) if both else float("inf"))
    log = max(found, key=lambda name: found[name])
    return Outcome(difference=difference, logs_difference=found[log], log=log)


def _largest(one: Any, two: Any) -> float:
    difference = np.abs(np.asarray(one, np.float64) - np.asarray(two, np.float64))
    return float(difference.max(initial=0.0)) if not np.isnan(difference).any() else float("inf")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        plain = run("plain", 0, Path(temporary) / "plain")
        others = {title: run(*MODES[title], Path(temporary) / title.replace(" ", "-")) for title in MODES}
    print("# Programs tried\n")
    print(_ABOUT)
    print(f"| program | {' | '.join(MODES)} |\n| --- |{' --- |' * len(MODES)}")
    for name in plain:
        cells = [compare(plain[name], others[title][name]).describe() for title in MODES]
        print(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
