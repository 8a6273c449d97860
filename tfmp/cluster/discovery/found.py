"""What a source knows about the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.errors import UsageError

#: Each training on a host takes its ports from a slot of its own; a host may have so many workers.
PORTS_PER_SLOT = 64
_FIRST_PORT = 16384
#: Below 32768, where Linux begins to give ports to outgoing connections.
_SLOTS = (32768 - _FIRST_PORT) // PORTS_PER_SLOT


@dataclass(frozen=True)
class Discovered:
    """A cluster, as far as it is known before its workers have met, and this process's place in it.

    Attributes:
        source: ``manual``, ``tf-config``, ``slurm``, ``mpi`` or ``kubernetes``.
        found: One line for the user: what was found, and where.
        size: Number of workers.
        rank: This worker's rank; ``None`` for an evaluator, which takes no part.
        spec: The addresses; ``None`` if the workers learn them from each other at ``rendezvous``.
        rendezvous: Rank 0's address, if the others are unknown.
        run: What distinguishes this run from the scheduler's other runs; ``None`` if nothing does.
        local: This worker's number among those on its host, and how many they are; ``None`` if the addresses tell.
        warning: What will probably go wrong; ``None`` for nothing.
        bound: Whether the scheduler may already have bound each worker to its own cores and GPUs.
    """

    source: str
    found: str
    size: int
    rank: int | None
    spec: ClusterSpec | None = None
    rendezvous: Address | None = None
    run: str | None = None
    local: tuple[int, int] | None = None
    bound: bool = False
    warning: str | None = None


def slot_port(number: int) -> int:
    """Return the first port of a job's slot. Jobs with nearby numbers never share a slot."""
    return _FIRST_PORT + number % _SLOTS * PORTS_PER_SLOT


def read_number(environ: Mapping[str, str], name: str) -> int:
    """Return the value of a variable as a number.

    Raises:
        UsageError: It is missing or not a number; names variable and value.
    """
    text = environ.get(name)
    if text is None:
        raise UsageError(f"expected a number in {name}, which is not set", where=name)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UsageError(f"expected a number, received {name}={text[:80]}", where=name)
    return int(text)


def check_rank(rank: int, size: int, where: str) -> None:
    """Check a rank against the number of workers.

    Raises:
        UsageError: It is not in 0..size-1.
    """
    if not 0 <= rank < size:
        raise UsageError(f"expected a rank in 0..{size - 1}, received {rank}", where=where)
