"""Slurm: the variables that ``srun`` gives each task of a step.

Everything comes from the environment; no program is run. (TensorFlow's own resolver needs ``nvidia-smi``, sorts nodes
as text, so that ranks and hosts no longer match from ten nodes on, and gives two jobs on a node the same port.)
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from tfmp.cluster.discovery.found import PORTS_PER_SLOT, Discovered, check_rank, read_number, slot_port
from tfmp.cluster.spec import Address, ClusterSpec, check_port_range
from tfmp.errors import UsageError

_STEP_NODES, _JOB_NODES = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"
# A prime, so that the steps of a job get slots far from those of the next jobs.
_STEP_STRIDE = 101
_PLANE = "SLURM_DIST_PLANESIZE"
# Lists are compressed: ``rack[1-2]n[01-04,7],login`` of nodes, ``2(x3),1`` of tasks a node.
_MAX_HOSTS = 65536
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]*\Z", re.ASCII)
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?\Z", re.ASCII)
_OWN_PLACE = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_GTIDS")


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether ``srun`` started this process. A batch script itself has SLURM_PROCID=0 too, but no step variables."""
    return _STEP_NODES in environ and "SLURM_PROCID" in environ


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether this process runs inside an allocation, step or not."""
    return bool(environ.get("SLURM_JOB_ID") or environ.get(_JOB_NODES))


def from_slurm(environ: Mapping[str, str], base_port: int | None = None) -> Discovered:
    """Return the cluster of a Slurm step (or, without a step, of the allocation).

    Args:
        environ: The environment.
        base_port: ``cluster.base_port``: the port of the first task on each node; ``None`` derives it from the job.

    Raises:
        UsageError: A variable is missing, malformed, or does not fit the others; names it and its value.
    """
    step = _STEP_NODES in environ
    nodes_name = _STEP_NODES if step else _JOB_NODES
    nodes_text = environ.get(nodes_name)
    if not nodes_text:
        raise UsageError(
            f"expected a node list in {nodes_name}, which is not set",
            where=nodes_name,
            hint="start the workers with srun: srun -n 2 tfmp worker",
        )
    hosts = expand_hostlist(nodes_text, nodes_name)
    counts, counts_name = _task_counts(environ, len(hosts), step=step)
    size = sum(counts)
    rank = read_number(environ, "SLURM_PROCID")
    check_rank(rank, size, "SLURM_PROCID")
    places = _places(environ, counts, rank)
    job = read_number(environ, "SLURM_JOB_ID") if environ.get("SLURM_JOB_ID") else 0
    step_text = environ.get("SLURM_STEP_ID", "")
    step_number = int(step_text) if step_text.isdigit() and len(step_text) < 6 else 0
    first_port = base_port or slot_port(job + _STEP_STRIDE * step_number)
    if max(counts) > PORTS_PER_SLOT:
        raise UsageError(
            f"expected at most {PORTS_PER_SLOT} tasks a node, received {counts_name}={environ.get(counts_name)}",
            where=counts_name,
        )
    check_port_range(first_port, max(counts), "cluster.base_port")
    spec = ClusterSpec(tuple(Address(hosts[node], first_port + local) for node, local in places))
    node, local_rank = places[rank]
    kind = f"step {job}.{step_text or step_number}" if step else f"job {job}"
    return Discovered(
        source="slurm",
        found=f"Slurm {kind}: task {rank} of {size} on {nodes_text} (SLURM_PROCID, {nodes_name}, {counts_name})",
        size=size,
        rank=rank,
        spec=spec,
        run=f"Slurm {kind}",
        local=(local_rank, counts[node]),
        bound=True,
    )


def _task_counts(environ: Mapping[str, str], nodes: int, *, step: bool) -> tuple[list[int], str]:
    """Return the tasks of each node, and the variable that says so."""
    totals = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS") if step else ("SLURM_NTASKS", "SLURM_NPROCS")
    total_name = next((name for name in totals if environ.get(name)), None)
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if step else ("SLURM_TASKS_PER_NODE",)
    name = next((name for name in names if environ.get(name)), None)
    total = read_number(environ, total_name) if total_name else None
    if name is None:
        if total is None or total_name is None:
            raise UsageError(
                "expected the number of tasks in SLURM_NTASKS or SLURM_STEP_TASKS_PER_NODE, neither of which is set",
                where="SLURM_NTASKS",
                hint="say how many: srun -n 2 tfmp worker",
            )
        if not total or total % nodes:
            raise UsageError(
                f"expected the same number of tasks on each of {nodes} nodes, received {total_name}={total}, and "
                "SLURM_TASKS_PER_NODE is not set",
                where=total_name,
            )
        return [total // nodes] * nodes, total_name
    counts = expand_counts(environ[name], name)
    if len(counts) != nodes:
        raise UsageError(
            f"expected the tasks of {nodes} nodes, received {name}={environ[name]}, which are {len(counts)}", where=name
        )
    if total is not None and sum(counts) != total:
        # Inside a batch script this variable may be the allocation's, which srun's own -n can undercut.
        raise UsageError(
            f"expected {total} tasks ({total_name}), received {name}={environ[name]}, which are {sum(counts)}",
            where=name,
        )
    return counts, name


def _places(environ: Mapping[str, str], counts: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """Return each rank's node and its number on that node.

    Ranks fill one node after the other (``-m block``), or go round the nodes one by one (``-m cyclic``) or some at a
    time (``-m plane``); the lists look the same. This task's own place and node decide; where several layouts fit,
    SLURM_DISTRIBUTION does.
    """
    plane = read_number(environ, _PLANE) if environ.get(_PLANE) else 0
    candidates = {"block": _block(counts), "cyclic": _round(counts, 1)}
    if plane:
        candidates["plane"] = _round(counts, plane)
    wanted = environ.get("SLURM_DISTRIBUTION", "").partition(":")[0]
    for name in sorted(candidates, key=lambda name: name != wanted):
        if _fits(environ, candidates[name], rank):
            return candidates[name]
    known = ", ".join(f"{name}={environ[name]}" for name in _OWN_PLACE if name in environ)
    raise UsageError(
        f"expected the task layout of srun -m block, cyclic or plane, received another one: {known}",
        where="SLURM_DISTRIBUTION",
        hint="start with srun -m block",
    )


def _fits(environ: Mapping[str, str], places: Sequence[tuple[int, int]], rank: int) -> bool:
    node, local = places[rank]
    if "SLURM_NODEID" in environ and read_number(environ, "SLURM_NODEID") != node:
        return False
    if "SLURM_LOCALID" in environ and read_number(environ, "SLURM_LOCALID") != local:
        return False
    together = environ.get("SLURM_GTIDS")
    ranks = [other for other, place in enumerate(places) if place[0] == node]
    return not together or together == ",".join(map(str, ranks))


def _block(counts: Sequence[int]) -> list[tuple[int, int]]:
    return [(node, local) for node, count in enumerate(counts) for local in range(count)]


def _round(counts: Sequence[int], at_a_time: int) -> list[tuple[int, int]]:
    """Round the nodes, ``at_a_time`` tasks on each, until all have their tasks."""
    turns = range(0, max(counts), at_a_time)
    return [
        (node, local)
        for first in turns
        for node, count in enumerate(counts)
        for local in range(first, min(first + at_a_time, count))
    ]


def expand_hostlist(text: str, where: str) -> list[str]:
    """Return the host names of a Slurm node list, in its order.

    Names may have several bracketed parts (the last varies fastest) and text behind them; a range keeps the zeros in
    front of its first number.

    Args:
        text: The list, such as ``n[001-003],login``.
        where: The variable it came from.

    Raises:
        UsageError: The list is malformed, quoting variable and value.
    """
    hosts: list[str] = []
    for item in _split(text, where):
        parts = re.split(r"(\[[^\[\]]*\])", item)
        choices = [_choices(part, text, where) for part in parts if part]
        if not choices:
            raise _malformed(text, where, "an empty name")
        if len(hosts) + math.prod(map(len, choices)) > _MAX_HOSTS:
            raise _malformed(text, where, f"more than {_MAX_HOSTS:,} hosts")
        hosts += ("".join(combination) for combination in itertools.product(*choices))
    return hosts


def expand_counts(text: str, where: str) -> list[int]:
    """Return the tasks of each node from Slurm's ``2(x3),1``.

    Raises:
        UsageError: The list is malformed, quoting variable and value.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.match(item.strip())
        if match is None or not int(match[1]) or int(match[2] or 1) > _MAX_HOSTS:
            raise UsageError(f"expected numbers of tasks such as 2(x3),1, received {where}={text[:200]}", where=where)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split(text: str, where: str) -> list[str]:
    """Split at the commas outside of brackets."""
    items, depth = [""], 0
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _malformed(text, where, "brackets that do not match")
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
    if depth:
        raise _malformed(text, where, "brackets that do not match")
    return items


def _choices(part: str, text: str, where: str) -> list[str]:
    if not part.startswith("["):
        if not _NAME.match(part):
            raise _malformed(text, where, f"a name {part[:40]!r}")
        return [part]
    found: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise _malformed(text, where, f"a range {piece[:40]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _malformed(text, where, f"a range {piece[:40]!r} that runs backwards")
        if int(last) - int(first) >= _MAX_HOSTS:
            raise _malformed(text, where, f"more than {_MAX_HOSTS:,} hosts")
        found += (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return found


def _malformed(text: str, where: str, what: str) -> UsageError:
    return UsageError(f"expected a Slurm node list, received {where}={text[:200]}: {what}", where=where)
