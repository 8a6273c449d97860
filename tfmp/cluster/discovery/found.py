"""What a source says about the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.errors import UsageError

#: Each training on a host takes its ports from a slot of its own: as many as workers may be on a host.
PORTS_PER_SLOT = 64
_FIRST_PORT = 16384
#: Below 32768, where Linux begins to give ports to outgoing connections.
_SLOTS = (32768 - _FIRST_PORT) // PORTS_PER_SLOT


@dataclass(frozen=True)
class Discovered:
    """A cluster, or as much of it as is known before its workers have met, and this process's place in it.

    Attributes:
        source: ``manual``, ``tf-config``, ``slurm``, ``mpi`` or ``kubernetes``.
        found: What was found where, for a person: one line.
        size: Number of workers.
        rank: This worker's rank; ``None`` for an evaluator, which takes no part.
        spec: The addresses; ``None`` where the workers learn of each other at ``rendezvous``.
        rendezvous: Rank 0's address, where the others are not known.
        run: What tells two runs of a scheduler apart; ``None`` where nothing does.
        local: This worker's number among those on its host, and how many they are; ``None`` where the addresses tell.
        warning: What will most likely go wrong; ``None`` for nothing.
        bound: Whether the source may have given each worker its own cores and GPUs already.
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
    """Return the first port of the slot that belongs to a job: jobs with numbers near each other never share one."""
    return _FIRST_PORT + number % _SLOTS * PORTS_PER_SLOT


def read_number(environ: Mapping[str, str], name: str) -> int:
    """Return the value of a variable that counts.

    Raises:
        UsageError: It is missing or no number, naming variable and value.
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
