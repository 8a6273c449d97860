"""tfmp beside the classic listing: plain Keras ``fit`` in one process, batch 32, constant learning rate.

    python benchmarks/classic.py [--pairs 3]

Each pair runs the listing and ``tfmp train`` one after the other on the same machine; ratios are of the same pair, the
medians and the range of all pairs are printed. Samples per second leave out the first epoch of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LISTING = """
import time, json, sys
import keras
from tfmp.config import RunConfig
from tfmp.data.cache import prepare
import numpy as np
a = prepare(RunConfig().data).open()
x, y = np.asarray(a.train.images) / np.float32(255), np.asarray(a.train.labels)
xt, yt = np.asarray(a.validation.images) / np.float32(255), np.asarray(a.validation.labels)
batch = int(sys.argv[1])
model = keras.Sequential([keras.layers.Input((28, 28)), keras.layers.Flatten(),
                          keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
class Clock(keras.callbacks.Callback):
    seconds = []
    def on_epoch_begin(self, epoch, logs=None): self.began = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None): self.seconds.append(time.perf_counter() - self.began)
model.fit(x, y, batch_size=batch, epochs=3, verbose=0, callbacks=[Clock()])
print(json.dumps({"samples_per_second": len(x) / min(Clock.seconds[1:]), "accuracy": model.evaluate(xt, yt, verbose=0)[1]}))
"""


def listing(batch: int) -> float:
    """Samples per second of the classic listing."""
    done = subprocess.run([sys.executable, "-c", LISTING, str(batch)], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def trained(batch: int, *arguments: str) -> float:
    """Samples per second of ``tfmp train``, from its metrics, best of the epochs after the first."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "tfmp", "train", "-q", "--epochs", "3", "--batch-size", str(batch), *arguments]
        subprocess.run([*command, "--run-dir", str(run)], check=True)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return max(float(line["samples_per_second"]) for line in lines[1:])


def main() -> None:
    """Run the pairs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    pairs = parser.parse_args().pairs
    cases = {
        "classic listing": lambda batch: listing(batch),
        "1 worker": lambda batch: trained(batch, "--workers", "1"),
        "2 workers": lambda batch: trained(batch, "--workers", "2"),
        "mirrored, 2 devices": lambda batch: trained(batch, "--strategy", "mirrored", "--devices", "2"),
    }
    print("| global batch | what | samples/s | to the listing |\n| --- | --- | --- | --- |")
    for batch in (32, 256, 2048):
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(pairs):
            for name, run in cases.items():
                found[name].append(run(batch))
        for name, rates in found.items():
            ratios = [one / base for one, base in zip(rates, found["classic listing"], strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {batch} | {name} | {statistics.median(rates):,.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
