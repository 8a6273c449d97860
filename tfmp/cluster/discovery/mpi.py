"""MPI launchers: Open MPI, and MPICH's Hydra (Intel MPI, MVAPICH), by the variables they give each process.

They tell rank and size, but not the hosts. That is enough on one host; on several, the workers learn each other's
addresses at ``--rendezvous``. MPI itself is not used.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tfmp.cluster.discovery.found import PORTS_PER_SLOT, Discovered, check_rank, read_number, slot_port
from tfmp.cluster.spec import Address, ClusterSpec, check_port_range
from tfmp.errors import UsageError

_HOST = "127.0.0.1"


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    jobs: tuple[str, ...]


_OPEN_MPI = _Launcher(
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
)
# srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too, but not the local ones.
_HYDRA = _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID", "PMI_PORT"))


def in_mpi(environ: Mapping[str, str]) -> bool:
    """Whether an MPI launcher started this process."""
    return any(launcher.rank in environ and launcher.local_rank in environ for launcher in (_OPEN_MPI, _HYDRA))


def from_mpi(
    environ: Mapping[str, str],
    *,
    rendezvous: Address | None = None,
    base_port: int | None = None,
    parent_pid: int = 0,
) -> Discovered:
    """Return the cluster of an MPI launcher's processes.

    Args:
        environ: The environment.
        rendezvous: Rank 0's address, for processes on several hosts.
        base_port: Port of the first process on one host; ``None`` derives it from the launcher's job.
        parent_pid: The process that started this one: the same for all on one host, in case no variable names the job.

    Raises:
        UsageError: No MPI variables, malformed ones, or several hosts without ``rendezvous``.
    """
    launcher = next((known for known in (_OPEN_MPI, _HYDRA) if known.rank in environ), None)
    if launcher is None:
        raise UsageError(
            f"expected the variables of an MPI launcher ({_OPEN_MPI.rank} or {_HYDRA.rank}), found neither",
            where="--cluster mpi",
            hint="start the workers with it: mpirun -n 2 tfmp worker",
        )
    size, rank = read_number(environ, launcher.size), read_number(environ, launcher.rank)
    if not size:
        raise UsageError(f"expected at least one process, received {launcher.size}=0", where=launcher.size)
    check_rank(rank, size, launcher.rank)
    local_size = read_number(environ, launcher.local_size) if launcher.local_size in environ else size
    found = f"{launcher.name}: process {rank} of {size} ({launcher.rank}, {launcher.size})"
    local = (read_number(environ, launcher.local_rank) if launcher.local_rank in environ else rank, local_size)
    check_rank(local[0], local_size, launcher.local_rank)
    if rendezvous is not None:
        found = f"{found}; rendezvous at {rendezvous}"
        return Discovered("mpi", found, size, rank, rendezvous=rendezvous, local=local, bound=True)
    if local_size != size:
        raise UsageError(
            f"expected all {size} processes of {launcher.name} on one host, found {local_size} here: it does not tell "
            "the hosts of the others",
            where=launcher.local_size,
            hint="give the first host and a free port on it: --rendezvous HOST:2222",
        )
    if size > PORTS_PER_SLOT:
        raise UsageError(f"expected at most {PORTS_PER_SLOT} processes, received {size}", where=launcher.size)
    job = next((environ[name] for name in launcher.jobs if environ.get(name)), str(parent_pid))
    first_port = base_port or slot_port(zlib.crc32(job.encode("utf-8", "surrogateescape")))
    check_port_range(first_port, size, "cluster.base_port")
    spec = ClusterSpec.local(_HOST, range(first_port, first_port + size))
    return Discovered(
        "mpi",
        f"{found}, all on this host",
        size,
        rank,
        spec=spec,
        run=f"{launcher.name} job {job}",
        local=local,
        bound=True,
    )
