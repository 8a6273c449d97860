"""Where the workers of one host meet to share memory: a private folder and a secret, for one attempt of one run.

Workers that one launcher starts meet in its temporary folder. Those of ``tfmp worker`` have a launcher each: the
leading one tells all, as the training starts, a secret and whether the workers of each address share a place at all
(two containers behind one address do not).
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

from tfmp.errors import UsageError
from tfmp.planning.collective import Collective
from tfmp.rundir.temporary import in_use

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan

_IN_MEMORY = ("shm", "hierarchical")


@dataclass(frozen=True)
class ShmSetup:
    """Where the workers of each host meet.

    Attributes:
        directory: A folder on this host, mode 0700.
        token: A secret of the run, hex.
    """

    directory: Path
    token: str

    def of(self, rank: int, plan: Plan) -> dict[str, Any]:
        """What worker ``rank`` is told, as :class:`tfmp.trainer.worker.WorkerTask` takes it."""
        host = plan.hosts[rank]
        return {
            "directory": str(self.directory),
            "token": self.token,
            "rank": plan.hosts[:rank].count(host),
            "size": plan.hosts.count(host),
            "hosts": len(set(plan.hosts)),
        }


def local_shm_setup(temporary: Path, plan: Plan) -> ShmSetup | None:
    """Make the place for workers of one launcher, or nothing where the plan's collective needs none."""
    if plan.collective.name not in _IN_MEMORY:
        return None
    directory = temporary / "meeting"
    directory.mkdir(mode=0o700)
    return ShmSetup(directory, secrets.token_hex(16))


def shm_domain() -> str:
    """What is equal for two launchers that can meet in a folder for temporary files and share memory, as a digest."""
    folder = Path(tempfile.gettempdir()).stat()
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts = (boot.read_text() if boot.exists() else "", os.getuid(), folder.st_dev, folder.st_ino)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def compose_shm_setup(plan: Plan, places: Sequence[str], pids: Sequence[int]) -> dict[str, Any]:
    """What the leading launcher tells all as they start.

    Args:
        plan: The run.
        places: By rank, :func:`shm_domain`.
        pids: By rank, the launcher's process id.
    """
    apart = [rank for rank, host in enumerate(plan.hosts) if places[rank] != places[plan.hosts.index(host)]]
    return {"secret": secrets.token_hex(16), "apart": apart, "pids": list(pids)}


def settle_collective(plan: Plan, told: Mapping[str, Any], requested: str, names: Sequence[str]) -> Plan:
    """The plan with the collective that the places of the workers allow: the same decision on every host.

    Raises:
        UsageError: Shared memory was asked for, and workers of one address share none.
    """
    if plan.collective.name not in _IN_MEMORY or not told["apart"]:
        return plan
    rank = told["apart"][0]
    first = plan.hosts.index(plan.hosts[rank])
    reason = f"{names[first]} and {names[rank]} have one address and share no folder for temporary files"
    if requested != "auto":
        raise UsageError(
            f"the collective {requested} is not possible: {reason}",
            where="cluster.collective",
            hint="--collective auto, or the same TMPDIR and user for all workers of a host",
        )
    return replace(plan, collective=Collective("ring", reason))


@contextmanager
def shared_shm_setup(plan: Plan, rank: int, told: Mapping[str, Any]) -> Iterator[ShmSetup | None]:
    """The place for workers with a launcher each; ``None`` where the plan's collective needs none."""
    if plan.collective.name not in _IN_MEMORY:
        yield None
        return
    host = plan.hosts[rank]
    first = plan.hosts.index(host)
    name = hashlib.sha256(f"{told['secret']} {host}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tfmp-{told['pids'][first]}-{name}"
    directory = folder / "meeting"
    for one in (folder, directory):
        one.mkdir(mode=0o700, exist_ok=True)
    try:
        with in_use(folder):
            yield ShmSetup(directory, told["secret"])
    finally:
        if rank == first:
            shutil.rmtree(folder, ignore_errors=True)
