"""NUMA: on machines whose memory is attached to groups of cores, each worker stays with one group's cores and memory.

A worker's memory lies where its first writer ran, so a worker that stays on one node finds its weights, gradients and
optimizer state nearby. Workers of one node that share a slot of the shared-memory collective share its cache, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/")


def numa_nodes(cpus: Sequence[int], root: Path = _ROOT) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each NUMA node that this process may run on, nodes without any left out.

    Args:
        cpus: Numbers of the allowed CPUs.
        root: Where ``sys`` lies.
    """
    folder = root / "sys/devices/system/node"
    names = (path.name for path in folder.glob("node*")) if folder.is_dir() else ()
    numbers = sorted(int(name[4:]) for name in names if name[4:].isdecimal())
    allowed = frozenset(cpus)
    nodes = []
    for number in numbers:
        try:
            text = (folder / f"node{number}" / "cpulist").read_text()
        except OSError:
            continue
        if usable := parse_cpu_list(text) & allowed:
            nodes.append(usable)
    return tuple(nodes)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a kernel's list such as ``0-3,8,10-11``; anything else in it is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def spread_over_nodes(workers: int, nodes: Sequence[frozenset[int]]) -> tuple[frozenset[int] | None, ...]:
    """Return the CPUs that each worker of this machine is kept on; ``None`` leaves it to the scheduler.

    Neighbouring ranks share a node, each node has a part of the workers in proportion to its CPUs, and a worker may use
    all CPUs of its node. With one node, with fewer workers than nodes (each may want more threads than a node has
    CPUs), or with more workers than CPUs, nobody is kept anywhere.

    Args:
        workers: Number of workers on this machine.
        nodes: What :func:`numa_nodes` says.
    """
    total = sum(map(len, nodes))
    if len(nodes) < 2 or workers < len(nodes) or workers > total:
        return (None,) * workers
    ends, counted = [], 0
    for node in nodes:
        counted += len(node)
        ends.append(counted / total)
    # A worker belongs to the node that its middle falls into, all CPUs and all workers laid out from 0 to 1.
    places = [next(i for i, end in enumerate(ends) if (worker + 0.5) / workers <= end) for worker in range(workers)]
    return tuple(nodes[place] for place in places)
