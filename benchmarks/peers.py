"""tfmp beside its peers, on the same work, in the same run, one after the other in turn.

    python benchmarks/peers.py [--rounds 5] [--batch-size 32,256,2048] [--torch-python PYTHON]

The work: MNIST, 784-128-10, ReLU, Adam, samples in a new order each epoch, the last short batch included, two cores.
Each contender runs once a round; ratios are taken within a round. Printed are medians and the range of all rounds as
Markdown tables. PyTorch is looked for in PYTHON (its own environment will do), and left out, with a line, where it is
absent.
"""

from __future__ import annotations

import argparse
import sys

from support import (
    PEER_EPOCHS,
    Measure,
    has_torch,
    interleaved,
    median_of,
    program,
    ratio_text,
    tfmp,
    without_communication,
)

ONE_CORE = ("--workers", "1", "--set", "cluster.threads_per_worker=1")
OWN = "tfmp, 2 workers"


def contenders(batch: int, torch_python: str | None) -> dict[str, Measure]:
    """Who runs at a global batch."""
    ring = ("--workers", "2", "--collective", "ring", "--epochs", str(PEER_EPOCHS[batch]))
    found = {
        OWN: tfmp(batch, "--workers", "2"),
        "the same over TensorFlow's ring": tfmp(batch, *ring),
        "the same step without communication": without_communication(batch),
        "tfmp, 1 worker on 1 core": tfmp(batch, *ONE_CORE),
        "tfmp, mirrored, 2 devices": tfmp(batch, "--strategy", "mirrored", "--devices", "2"),
        "classic listing (Keras fit, 1 process)": program(sys.executable, "keras_fit.py", batch, PEER_EPOCHS[batch]),
    }
    if torch_python:
        found["PyTorch, 1 process"] = program(torch_python, "torch_fit.py", 1, batch, PEER_EPOCHS[batch])
        found["PyTorch DDP on Gloo, 2 processes"] = program(torch_python, "torch_fit.py", 2, batch, PEER_EPOCHS[batch])
    return found


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", default="32,256,2048")
    parser.add_argument("--torch-python", default=sys.executable)
    options = parser.parse_args()
    torch_python = options.torch_python if has_torch(options.torch_python) else None
    if torch_python is None:
        print(f"PyTorch is left out: {options.torch_python} cannot import torch (see --torch-python).\n")
    print("| global batch | contender | samples/s | tfmp, 2 workers, to it |\n| --- | --- | --- | --- |", flush=True)
    for batch in map(int, options.batch_size.split(",")):
        found = interleaved(contenders(batch, torch_python), options.rounds)
        for name, rates in found.items():
            median = median_of(rates)
            shown = "failed" if median is None else f"{median:,.0f}"
            print(f"| {batch} | {name} | {shown} | {ratio_text(found[OWN], rates)} |", flush=True)
    print("\n| batch a worker | 1 worker on 1 core | 2 workers | weak scaling |\n| --- | --- | --- | --- |", flush=True)
    for batch in (256, 2048):
        pair = {"one": tfmp(batch, *ONE_CORE), "two": tfmp(2 * batch, "--workers", "2")}
        found = interleaved(pair, options.rounds)
        one, two = (f"{median_of(found[name]) or 0:,.0f}" for name in ("one", "two"))
        print(f"| {batch} | {one} | {two} | {ratio_text(found['two'], found['one'])} |", flush=True)


if __name__ == "__main__":
    main()
