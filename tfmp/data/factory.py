"""``data.factory``: the user's function runs in a process of its own, which writes what it returns for all workers.

The function may import TensorFlow, which the launcher must not, and starting TensorFlow before the workers are forked
would break them. It runs once per start of a run on each host.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tfmp.data.entry import CachedDataset, load_entry, write_entry
from tfmp.errors import TfmpError, UsageError
from tfmp.noise import is_noise
from tfmp.references import load_function

_STEM = "factory"
_ERROR = "error.json"
_SEED = 0


def make_entry(reference: str, directory: Path, notice: Callable[[str], None]) -> CachedDataset:
    """Run the function in a process of its own; its samples are then in ``directory``.

    Args:
        reference: ``package.module:function``.
        directory: An existing, empty folder.
        notice: Called with one line before the function runs.

    Raises:
        UsageError: The function fails or returns something else than samples.
        TfmpError: The process was killed.
    """
    notice(f"data: calling {reference}")
    command = [sys.executable, "-m", "tfmp.data.factory", reference, str(directory)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}  # GPUs are for the workers
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not is_noise(line):
                # Standard output belongs to the command (`--json`).
                print(line, end="", file=sys.stderr, flush=True)
    status = process.returncode
    if status == 0:
        return load_entry(directory / f"{_STEM}.json", verify=False)
    try:
        told = json.loads((directory / _ERROR).read_text(encoding="utf-8"))
    except FileNotFoundError:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise TfmpError(f"the process of data.factory ended with {how}", where=_where(reference)) from None
    raise UsageError(told["what"], where=told["where"], hint=told["hint"])


def main() -> int:
    """Call the function, in the process of its own."""
    reference, directory = sys.argv[1], Path(sys.argv[2])
    where = _where(reference)
    try:
        _make(reference, directory, where)
    except TfmpError as error:
        told = {"what": error.what, "where": error.where, "hint": error.hint}
    except Exception as error:
        from tfmp.reason import reason_of

        traceback.print_exc()
        reason = reason_of(error)
        told = {
            "what": f"{reason.type}: {reason.text}",
            "where": f"{where} at {reason.place}" if reason.place else where,
            "hint": None,
        }
    else:
        return 0
    (directory / _ERROR).write_text(json.dumps(told), encoding="utf-8")
    return 1


def _make(reference: str, directory: Path, where: str) -> None:
    import numpy as np

    from tfmp.data.collect import collect_dataset

    function = load_function(reference, "data.factory")
    # A split drawn at random is then the same one at each start, on each host and when the run resumes.
    random.seed(_SEED)
    np.random.seed(_SEED)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(_SEED)
    write_entry(directory, _STEM, collect_dataset(function(), reference, where))


def _where(reference: str) -> str:
    return f"data.factory: {reference}"


if __name__ == "__main__":
    sys.exit(main())
