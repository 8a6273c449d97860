"""tfmp beside its peers, on the same work, in the same run, one after the other in turn.

    python benchmarks/peers.py [--pairs 5] [--batch-size 32,256,2048] [--torch-python PYTHON]

The work: MNIST, 784-128-10, ReLU, Adam, samples in a new order each epoch, the last short batch included, two cores.
Each contender runs once a round; ratios are taken within a round. Printed are medians and the range of all rounds as a
Markdown table. PyTorch is looked for in PYTHON (its own environment will do), and left out, with a line, where it is
absent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCHS = {32: 3, 256: 6, 2048: 12}


def keras_listing(batch: int) -> float:
    """The classic listing: stock Keras ``fit`` in one process on both cores."""
    return _program(sys.executable, "keras_fit.py", batch, EPOCHS[batch])


def torch_alone(python: str) -> Callable[[int], float]:
    """PyTorch in one process on both cores."""
    return lambda batch: _program(python, "torch_fit.py", 1, batch, EPOCHS[batch])


def torch_ddp(python: str) -> Callable[[int], float]:
    """PyTorch DistributedDataParallel on Gloo, two processes of one thread."""
    return lambda batch: _program(python, "torch_fit.py", 2, batch, EPOCHS[batch])


def tfmp(*arguments: str) -> Callable[[int], float]:
    """``tfmp train`` with these arguments; samples/s as the median of the epochs after the first."""

    def run(batch: int) -> float:
        with tempfile.TemporaryDirectory() as scratch:
            command = _tfmp_command(batch, scratch, arguments)
            subprocess.run(command, check=True)
            return _steady(Path(scratch))

    return run


def without_communication(batch: int) -> float:
    """Two lone workers at once, half the batch each on a core of its own: the same step without an exchange."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        folders = (first, second)
        half = ("--set", "data.limit_train=30000", "--workers", "1")
        processes = [
            subprocess.Popen(["taskset", "-c", str(core), *_tfmp_command(batch // 2, folder, half)])
            for core, folder in enumerate(folders)
        ]
        if any(process.wait() for process in processes):
            raise SystemExit("a run without communication failed")
        return sum(_steady(Path(folder)) for folder in folders)


def _tfmp_command(batch: int, folder: str, arguments: tuple[str, ...]) -> list[str]:
    fixed = ("--epochs", str(EPOCHS[batch] if batch in EPOCHS else EPOCHS[batch * 2]), "--batch-size", str(batch))
    quiet = ("-q", "--set", "run.checkpoints=false", "--set", "run.tensorboard=false", "--learning-rate", "0.001")
    return [sys.executable, "-m", "tfmp", "train", *fixed, *quiet, *arguments, "--run-dir", f"{folder}/run"]


def _steady(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(float(line["samples_per_second"]) for line in lines[1:])


def _program(python: str, name: str, *arguments: object) -> float:
    command = [python, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    )
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def _has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch-size", default="32,256,2048")
    parser.add_argument("--torch-python", default=sys.executable)
    options = parser.parse_args()
    contenders: dict[str, Callable[[int], float]] = {
        "tfmp, 2 workers": tfmp("--workers", "2"),
        "the same over TensorFlow's ring": tfmp("--workers", "2", "--collective", "ring"),
        "the same step without communication": without_communication,
        "tfmp, 1 worker on 1 core": tfmp("--workers", "1", "--set", "cluster.threads_per_worker=1"),
        "tfmp, mirrored, 2 devices": tfmp("--strategy", "mirrored", "--devices", "2"),
        "classic listing (Keras fit, 1 process)": keras_listing,
    }
    if _has_torch(options.torch_python):
        contenders["PyTorch, 1 process"] = torch_alone(options.torch_python)
        contenders["PyTorch DDP on Gloo, 2 processes"] = torch_ddp(options.torch_python)
    else:
        print(f"PyTorch is left out: {options.torch_python} cannot import torch (see --torch-python)")
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    print("| global batch | contender | samples/s | tfmp, 2 workers, to it |\n| --- | --- | --- | --- |")
    for batch in map(int, options.batch_size.split(",")):
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.pairs):
            for name, run in contenders.items():
                found[name].append(run(batch))
        own = found["tfmp, 2 workers"]
        for name, rates in found.items():
            ratios = [a / b for a, b in zip(own, rates, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {batch} | {name} | {statistics.median(rates):,.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
