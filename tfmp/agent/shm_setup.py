"""Where the workers of one host join to share memory: a private folder and a secret, for one attempt of one run.

Workers of one launcher join in its temporary folder. Those of ``tfmp worker`` have a launcher each: as the training
starts, the leading launcher tells all of them a secret, and which workers share no memory with the first one at their
address (two containers behind one address do not).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp import procfs
from tfmp.cluster.spec import position_on_host
from tfmp.errors import UsageError
from tfmp.planning.collective import Collective
from tfmp.planning.task import ShmJoin
from tfmp.rundir.temporary import in_use

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan


@dataclass(frozen=True)
class ShmSetup:
    """Where the workers of this host join.

    Attributes:
        directory: A folder on this host, mode 0700.
        token: A secret of the run, hex.
    """

    directory: Path
    token: str

    def join(self, rank: int, plan: Plan) -> ShmJoin:
        """Return what worker ``rank`` is told."""
        position, size = position_on_host(plan.hosts, rank)
        return ShmJoin(self.directory, self.token, position, size, hosts=len(set(plan.hosts)))


def local_shm_setup(temporary: Path, plan: Plan) -> ShmSetup | None:
    """Make the folder for the workers of one launcher; ``None`` if the plan's collective shares no memory."""
    if not plan.collective.uses_shared_memory:
        return None
    directory = temporary / "shm"
    directory.mkdir(mode=0o700)
    return ShmSetup(directory, secrets.token_hex(16))


def shm_domain() -> str:
    """Return a digest that is equal for two launchers that can share memory: one kernel, user and temporary folder."""
    folder = Path(tempfile.gettempdir()).stat()
    parts = (procfs.boot_id(), os.getuid(), folder.st_dev, folder.st_ino)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def compose_shm_setup(plan: Plan, domains: Sequence[str], pids: Sequence[int]) -> dict[str, Any]:
    """Return what the leading launcher tells all of them as the training starts.

    Args:
        plan: The run.
        domains: By rank, :func:`shm_domain`.
        pids: By rank, the launcher's process id.
    """
    apart = [rank for rank, host in enumerate(plan.hosts) if domains[rank] != domains[plan.hosts.index(host)]]
    return {"secret": secrets.token_hex(16), "apart": apart, "pids": list(pids)}


def settle_collective(plan: Plan, told: Mapping[str, Any], requested: str, names: Sequence[str]) -> Plan:
    """Return the plan with a collective that the workers can use: the same decision on every host.

    Args:
        plan: The run.
        told: What the leading launcher has told.
        requested: ``cluster.collective``.
        names: The workers' names, by rank.

    Raises:
        UsageError: Shared memory was asked for, and workers of one address share none.
    """
    if not plan.collective.uses_shared_memory or not told["apart"]:
        return plan
    rank = told["apart"][0]
    first = plan.hosts.index(plan.hosts[rank])
    reason = f"{names[first]} and {names[rank]} have one address, but do not share a folder for temporary files"
    if requested != "auto":
        raise UsageError(
            f"the collective {requested} is not possible: {reason}",
            where="cluster.collective",
            hint="--collective auto, or the same TMPDIR and user for all workers of a host",
        )
    return replace(plan, collective=Collective("ring", reason))


@contextmanager
def shared_shm_setup(plan: Plan, rank: int, told: Mapping[str, Any]) -> Iterator[ShmSetup | None]:
    """Make the folder for workers with a launcher each; ``None`` if the plan's collective shares no memory."""
    if not plan.collective.uses_shared_memory:
        yield None
        return
    first = plan.hosts.index(plan.hosts[rank])
    name = hashlib.sha256(f"{told['secret']} {plan.hosts[rank]}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tfmp-{told['pids'][first]}-{name}"
    directory = folder / "shm"
    for path in (folder, directory):
        path.mkdir(mode=0o700, exist_ok=True)
    try:
        with in_use(folder):
            yield ShmSetup(directory, told["secret"])
    finally:
        if rank == first:
            shutil.rmtree(folder, ignore_errors=True)
