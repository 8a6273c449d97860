"""Chooses the source that describes the cluster; the package's docstring has the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.discovery.kubernetes import from_kubernetes, in_pod
from tfmp.cluster.discovery.mpi import from_mpi, in_mpi
from tfmp.cluster.discovery.slurm import from_slurm, in_allocation, in_step
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.cluster.tf_config import VARIABLE, parse_index, parse_tf_config
from tfmp.errors import UsageError

Source = Literal["auto", "slurm", "kubernetes", "mpi", "tf-config", "manual"]


@dataclass(frozen=True)
class Asked:
    """What the user asked for.

    Attributes:
        source: ``--cluster``.
        addresses: ``cluster.workers`` as a list of addresses; ``None`` if it is a number.
        count: ``cluster.workers`` as a number; ``None`` if the user did not set it.
        index: ``--index`` as typed; ``None`` if not given.
        rendezvous: ``cluster.rendezvous``; ``None`` if not given.
        base_port: ``cluster.base_port``; ``None`` if not given.
    """

    source: Source = "auto"
    addresses: Sequence[str] | None = None
    count: int | None = None
    index: str | None = None
    rendezvous: str | None = None
    base_port: int | None = None


def discover(asked: Asked, environ: Mapping[str, str], *, hostname: str, parent_pid: int) -> Discovered:
    """Return the cluster and this process's place in it.

    Args:
        asked: What the user asked for.
        environ: The environment.
        hostname: This host's name with its domain.
        parent_pid: The process that started this one.

    Raises:
        UsageError: No source describes a cluster, or its description is wrong.
    """
    rendezvous = None if asked.rendezvous is None else Address.parse(asked.rendezvous, "cluster.rendezvous")
    source = asked.source if asked.source != "auto" else _choose(asked, environ, hostname)
    if source == "manual":
        return _manual(asked, rendezvous, hostname)
    if asked.index is not None:
        raise UsageError(
            f"expected no --index: {_NAMES[source]} says which worker this is", where="--index", hint="leave it out"
        )
    if source == "tf-config":
        return _from_tf_config(environ)
    if source == "mpi":
        return from_mpi(environ, rendezvous=rendezvous, base_port=asked.base_port, parent_pid=parent_pid)
    if source == "slurm":
        return from_slurm(environ, asked.base_port)
    return from_kubernetes(environ, hostname=hostname, size=asked.count, base_port=asked.base_port)


_NAMES = {"tf-config": VARIABLE, "mpi": "the MPI launcher", "slurm": "Slurm", "kubernetes": "Kubernetes"}


def _choose(asked: Asked, environ: Mapping[str, str], hostname: str) -> str:
    if asked.addresses is not None or asked.index is not None:
        return "manual"
    if environ.get(VARIABLE, "").strip():  # Docker Compose passes empty variables, which count as unset
        return "tf-config"
    if in_mpi(environ):
        return "mpi"
    if in_step(environ):
        return "slurm"
    if in_pod(environ, hostname):
        return "kubernetes"
    if in_allocation(environ):
        raise UsageError(
            "this process runs inside a Slurm allocation, but not in a step: it would train alone",
            where="SLURM_STEP_NODELIST",
            hint="start the workers with srun: srun -n 2 tfmp worker",
        )
    raise UsageError(
        "expected a cluster, found none: no addresses, no TF_CONFIG, no variables of Slurm, MPI or Kubernetes",
        where="cluster.workers",
        hint="tfmp worker --workers HOST:PORT,HOST:PORT --index I, or on one machine: tfmp train --workers 2",
    )


def _from_tf_config(environ: Mapping[str, str]) -> Discovered:
    config = parse_tf_config(environ.get(VARIABLE))
    if config is None:
        state = "is empty" if VARIABLE in environ else "is not set"
        raise UsageError(
            f"expected a cluster in {VARIABLE}, which {state}",
            where=VARIABLE,
            hint="set it, or give the cluster as --workers HOST:PORT,HOST:PORT --index I",
        )
    size = config.spec.size
    found = f"{VARIABLE}: {config.task_type} {config.index} of a cluster of {size}"
    return Discovered("tf-config", found, size, config.rank, spec=config.spec)


def _manual(asked: Asked, rendezvous: Address | None, hostname: str) -> Discovered:
    if asked.addresses is None and rendezvous is None:
        received = "none" if asked.count is None else f"the number {asked.count}"
        raise UsageError(
            f"expected each worker's address, received {received}",
            where="cluster.workers",
            hint="--workers HOST:PORT,HOST:PORT",
        )
    size = len(asked.addresses) if asked.addresses is not None else asked.count
    if size is None:
        raise UsageError(
            "expected the number of workers that join at --rendezvous", where="cluster.workers", hint="--workers 2"
        )
    by_name = index_by_name(asked.addresses or (), hostname) if asked.index is None else None
    if asked.index is None and by_name is None:
        raise UsageError(
            f"expected an index in 0..{size - 1}, received nothing: which of the {size} workers is this one?",
            where="--index",
            hint="--index 0 on the first host, --index 1 on the second, and so on",
        )
    index = by_name if by_name is not None else parse_index(asked.index, size, "--index")
    if asked.addresses is None:
        found = f"--index: worker {index} of {size}; rendezvous at {rendezvous}"
        return Discovered("manual", found, size, index, rendezvous=rendezvous, local=(0, 1))
    how = "--index" if by_name is None else f"this host's name ({hostname})"
    found = f"cluster.workers and {how}: worker {index} of {size}"
    try:
        spec, warning = ClusterSpec.from_addresses(asked.addresses), None
    except UsageError as error:
        # Only the worker with the loopback address cannot be reached; the list of missing workers will say so.
        spec, warning = ClusterSpec.from_addresses(asked.addresses, any_loopback=True), f"{error.where}: {error.what}"
    return Discovered("manual", found, size, index, spec=spec, warning=warning)


def index_by_name(addresses: Sequence[str], hostname: str) -> int | None:
    """Return the index of the worker whose address has this host's name; ``None`` if none or several do.

    Args:
        addresses: ``host:port`` by rank.
        hostname: This host's name. A domain that only one of the two names has makes no difference.
    """
    own = hostname.lower().rstrip(".")
    hosts = [Address.parse(text, f"cluster.workers[{index}]").host.lower() for index, text in enumerate(addresses)]
    same = [index for index, host in enumerate(hosts) if _same_host(host.rstrip("."), own)]
    return same[0] if len(same) == 1 else None


def _same_host(name: str, other: str) -> bool:
    short, long = sorted((name, other), key=len)
    if not any(character.isalpha() for character in short):  # an IP address is no host's name
        return False
    return short == long or ("." not in short and long.startswith(f"{short}."))
