"""Which source describes the cluster: see the package's text for the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.discovery.kubernetes import from_kubernetes, in_pod
from tfmp.cluster.discovery.mpi import from_mpi, in_mpi
from tfmp.cluster.discovery.slurm import from_slurm, in_allocation, in_step
from tfmp.cluster.discovery.tf_config import VARIABLE, from_tf_config, is_set
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.cluster.tf_config import parse_index
from tfmp.errors import UsageError

Source = Literal["auto", "slurm", "kubernetes", "mpi", "tf-config", "manual"]


@dataclass(frozen=True)
class Asked:
    """What the user says about the cluster.

    Attributes:
        source: ``--cluster``.
        addresses: ``cluster.workers`` as a list of addresses; ``None`` where it is a number.
        count: ``cluster.workers`` as a number; ``None`` where it is not set by the user.
        index: ``--index`` as typed; ``None`` where it is not given.
        rendezvous: ``cluster.rendezvous``; ``None`` for none.
        base_port: ``cluster.base_port``; ``None`` for none.
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
        asked: What the user says.
        environ: The environment.
        hostname: This host's name with its domain.
        parent_pid: The process that started this one.

    Raises:
        UsageError: No source has anything to say, or the one that does is wrong.
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
        return from_tf_config(environ)
    if source == "mpi":
        return from_mpi(environ, rendezvous=rendezvous, base_port=asked.base_port, parent_pid=parent_pid)
    if source == "slurm":
        return from_slurm(environ, asked.base_port)
    return from_kubernetes(environ, hostname=hostname, size=asked.count, base_port=asked.base_port)


_NAMES = {"tf-config": VARIABLE, "mpi": "the MPI launcher", "slurm": "Slurm", "kubernetes": "Kubernetes"}


def _choose(asked: Asked, environ: Mapping[str, str], hostname: str) -> str:
    if asked.addresses is not None or asked.index is not None:
        return "manual"
    if is_set(environ):
        return "tf-config"
    if in_mpi(environ):
        return "mpi"
    if in_step(environ):
        return "slurm"
    if in_pod(environ, hostname):
        return "kubernetes"
    if in_allocation(environ):
        raise UsageError(
            "this process is inside a Slurm allocation, but no step of it: it would be alone",
            where="SLURM_STEP_NODELIST",
            hint="start the workers with srun: srun -n 2 tfmp worker",
        )
    raise UsageError(
        "expected a cluster, found none: no addresses, no TF_CONFIG, no variables of Slurm, MPI or Kubernetes",
        where="cluster.workers",
        hint="tfmp worker --workers HOST:PORT,HOST:PORT --index I, or on one machine: tfmp train --workers 2",
    )


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
            "expected the number of workers that meet at --rendezvous", where="cluster.workers", hint="--workers 2"
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
        found = f"--index: worker {index} of {size}; meeting at {rendezvous}"
        return Discovered("manual", found, size, index, rendezvous=rendezvous, local=(0, 1))
    how = "--index" if by_name is None else f"this host's name ({hostname})"
    found = f"cluster.workers and {how}: worker {index} of {size}"
    try:
        spec, warning = ClusterSpec.from_addresses(asked.addresses), None
    except UsageError as error:
        # The worker that has the loopback address can do all but be reached: the roll call says of each what is wrong.
        spec, warning = ClusterSpec.from_addresses(asked.addresses, any_loopback=True), f"{error.where}: {error.what}"
    return Discovered("manual", found, size, index, spec=spec, warning=warning)


def index_by_name(addresses: Sequence[str], hostname: str) -> int | None:
    """Return the one worker whose address has this host's name; ``None`` where there is none, or more than one.

    Args:
        addresses: ``host:port`` by rank.
        hostname: This host's name, with or without its domain; a domain that only one of the two names has is no
            difference.
    """
    own = hostname.lower().rstrip(".")
    hosts = [Address.parse(text, f"cluster.workers[{index}]").host.lower() for index, text in enumerate(addresses)]
    same = [index for index, host in enumerate(hosts) if _same_host(host.rstrip("."), own)]
    return same[0] if len(same) == 1 else None


def _same_host(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if not any(character.isalpha() for character in short):  # an IP address is nobody's name
        return False
    return short == long or ("." not in short and long.startswith(f"{short}."))
