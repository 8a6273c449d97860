"""How long one sum over the workers of this machine takes, through shared memory.

    python benchmarks/collective.py
    python benchmarks/collective.py --ranks 2,4 --lengths 100000 --kinds futex,socket --calls 2000 --copy

The time of a call is what one rank sees, between two of its calls that follow each other at once. The table gives
the median over all calls and ranks, the 10th and 90th percentile, the slowest, and the bytes of one vector divided by
the median. Two cores of an otherwise idle machine, or more, are needed for figures that mean something.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tfmp.distribute.shm import SharedMemoryGroup

_Kind = Literal["auto", "futex", "socket"]


def measure_rank(
    directory: Path, rank: int, size: int, length: int, options: argparse.Namespace, kind: _Kind
) -> list[float]:
    """Run one rank.

    Returns:
        Seconds of each call, without the warm-up.
    """
    spin = size <= len(os.sched_getaffinity(0)) if options.spin == "auto" else options.spin == "yes"
    group = SharedMemoryGroup.join(
        directory, rank, size, options.capacity_bytes, token=b"bench", timeout_s=60, spin=spin, kind=kind
    )
    vector = np.random.default_rng(rank).standard_normal(length).astype(options.dtype)
    out = np.empty_like(vector) if options.copy else None
    calls = max(10, min(options.calls, int(options.calls * 1e6 / max(length, 1e6))))
    for _ in range(max(3, calls // 10)):
        group.all_reduce(vector, out=out)
    group.broadcast(np.zeros(1))
    times_s = []
    clock = time.perf_counter
    before = clock()
    for _ in range(calls):
        group.all_reduce(vector, out=out)
        now = clock()
        times_s.append(now - before)
        before = now
    group.broadcast(np.zeros(1))
    group.close()
    return times_s


def measure(size: int, length: int, kind: _Kind, options: argparse.Namespace) -> list[float]:
    """Fork ``size`` ranks and return the seconds of all their calls."""
    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(size):
            read_end, write_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                answer: Any = None
                try:
                    answer = measure_rank(Path(directory), rank, size, length, options, kind)
                except BaseException:
                    traceback.print_exc()
                finally:
                    with open(write_end, "wb") as pipe:
                        pickle.dump(answer, pipe)
                    os._exit(0)
            os.close(write_end)
            children.append((pid, read_end))
        times_s: list[float] = []
        for pid, read_end in children:
            with open(read_end, "rb") as pipe:
                answer = pickle.load(pipe)
            os.waitpid(pid, 0)
            times_s += answer or []
    if not times_s:
        raise SystemExit(1)
    return times_s


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8], help="numbers of worker processes")
    parser.add_argument("--lengths", type=numbers, default=[1, 10_000, 100_000, 1_000_000], help="elements of a vector")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["futex", "socket"])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--calls", type=int, default=2000, help="calls a rank; fewer for long vectors")
    parser.add_argument("--capacity-bytes", type=int, default=1 << 20, help="bytes of a slot")
    parser.add_argument("--spin", choices=["auto", "yes", "no"], default="auto", help="auto: if each rank has a core")
    parser.add_argument("--copy", action="store_true", help="into a vector of the caller's")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, {options.dtype}, slots of {options.capacity_bytes:,} bytes")
    columns = "".join(f" {name:>10}" for name in ("median", "p10", "p90", "max"))
    print(f"{'ranks':>5} {'elements':>10} {'barrier':>7}{columns} {'GB/s':>6}")
    for size in options.ranks:
        for length in options.lengths:
            for kind in options.kinds:
                times_us = sorted(1e6 * second for second in measure(size, length, kind, options))
                tenth = len(times_us) // 10
                median_us = statistics.median(times_us)
                rate = length * np.dtype(options.dtype).itemsize / median_us / 1e3
                cells = [median_us, times_us[tenth], times_us[-tenth - 1], times_us[-1]]
                texts = " ".join(f"{cell:>7.1f} µs" for cell in cells)
                print(f"{size:>5} {length:>10,} {kind:>7} {texts} {rate:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
