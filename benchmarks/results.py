"""Runs all benchmarks and writes ``benchmarks/RESULTS.md``: the machine, the versions, and what each program printed.

    python benchmarks/results.py [--rounds 5] [--torch-python PYTHON] [--only peers,startup]

On two cores the whole takes about half an hour. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from support import HERE, has_torch

SECTIONS = {
    "peers": "Beside its peers",
    "startup": "From Enter",
    "step": "The parts of a step, one worker and one thread, CPU time",
    "collective": "The sum in shared memory alone",
    "scaling": "How the cost grows with workers and with the model",
}


def machine() -> str:
    """One line: processor, cores, versions."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    tensorflow = next(
        f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow-cpu", "tensorflow") if _installed(name)
    )
    versions = [f"Python {platform.python_version()}", tensorflow, f"Keras {importlib.metadata.version('keras')}"]
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, {', '.join(versions)}"


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def torch_version(python: str) -> str:
    """PyTorch's version, or that it is absent."""
    if not has_torch(python):
        return "no PyTorch"
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    return f"PyTorch {done.stdout.strip()}"


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    more = {
        "peers": ["--rounds", str(options.rounds), "--torch-python", options.torch_python],
        "startup": ["--rounds", str(options.rounds)],
        "step": [],
        "scaling": ["--rounds", str(options.rounds)],
        "collective": ["--ranks", "2,4", "--kinds", "futex"],
    }
    text = [
        "# Results",
        "",
        f"{date.today()}: {machine()}, {torch_version(options.torch_python)}. Medians of {options.rounds} rounds, in",
        "each of which every contender ran once, in turn; ratios are taken within a round, the range of all rounds in",
        "brackets. `make bench` repeats them. What the figures mean: [docs/performance.md](../docs/performance.md).",
    ]
    for name in options.only.split(","):
        command = [sys.executable, str(HERE / f"{name}.py"), *more[name]]
        began = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{name} failed with exit code {done.returncode}, after it had printed:\n{done.stdout}")
        minutes = (time.monotonic() - began) / 60
        block = done.stdout.strip() if "| ---" in done.stdout else f"```\n{done.stdout.strip()}\n```"
        text += ["", f"## {SECTIONS[name]}", "", f"`python benchmarks/{name}.py` ({minutes:.0f} min)", "", block]
        options.output.write_text("\n".join(text) + "\n")
        print(f"{name}: {minutes:.1f} min", flush=True)


if __name__ == "__main__":
    main()
