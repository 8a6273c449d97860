"""A worker's place in its cluster: its rank and address, its share of its host, the command for each host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.spec import Address, ClusterSpec, check_port_range, position_on_host
from tfmp.cluster.tf_config import make_tf_config
from tfmp.planning.host import Host, share_gpus
from tfmp.rendezvous.leader import Peers
from tfmp.rendezvous.peer_status import Roster


@dataclass(frozen=True)
class Placement:
    """This worker in its cluster.

    Attributes:
        found: What describes the cluster.
        rank: This worker's rank.
        cluster: All addresses. Until the workers have met at ``cluster.rendezvous``, only those of rank 0 and of this
            worker are right.
        names: Each worker's name, by rank.
    """

    found: Discovered
    rank: int
    cluster: ClusterSpec
    names: tuple[str, ...]

    @property
    def own(self) -> Address:
        """This worker's address."""
        return self.cluster.address(self.rank)

    @property
    def text(self) -> str:
        """The cluster as a text that all its workers must agree on."""
        if self.found.rendezvous is not None:
            return f"{self.found.size} workers that meet at {self.found.rendezvous}"
        chief = "chief " if self.cluster.chief else ""
        return chief + ",".join(map(str, self.cluster.addresses))

    @property
    def roster(self) -> Roster:
        """What is known of the group before the workers have met."""
        addresses: list[str | None] = [str(address) for address in self.cluster.addresses]
        if self.found.rendezvous is not None:
            addresses = [address if rank in (0, self.rank) else None for rank, address in enumerate(addresses)]
        return Roster(self.names, addresses)


def find_placement(found: Discovered, rank: int) -> Placement:
    """Return the placement of the worker with this rank.

    Raises:
        UsageError: The port of ``cluster.rendezvous`` leaves no room for a port for each worker.
    """
    cluster = found.spec
    if cluster is None:
        # Each rank has a port of its own, as several may be on one host; only rank 0's host is known.
        assert found.rendezvous is not None
        host, port = found.rendezvous.host, found.rendezvous.port
        check_port_range(port, found.size, "cluster.rendezvous")
        cluster = ClusterSpec.local(host, range(port, port + found.size))
    tasks = (cluster.task(other) for other in range(cluster.size))
    return Placement(found, rank, cluster, tuple(f"{kind} {index}" for kind, index in tasks))


def own_dir(wanted: Path | None, rank: int) -> Path | None:
    """Return the folder of one worker: rank 0's is the run folder, the others lie in it, as it may be shared."""
    return wanted if wanted is None or rank == 0 else wanted / f"worker-{rank}"


def neighbours(place: Placement) -> tuple[int, int]:
    """Return this worker's number among the workers on its host, and how many they are."""
    return place.found.local or position_on_host(place.cluster.host_numbers, place.rank)


def share_host(host: Host, place: Placement, machine_cpus: int) -> Host:
    """Return this worker's share of a host that other workers of the cluster use too.

    Args:
        host: What this process may use.
        place: Its placement.
        machine_cpus: CPUs of the whole machine or container. A scheduler that has bound each worker to CPUs of its own
            gave this process fewer.

    Raises:
        UsageError: The GPUs cannot be shared equally.
    """
    number, workers = neighbours(place)
    if workers == 1:
        return host
    cores, gpus = host.cores, host.gpus
    if not (place.found.bound and len(host.cpus) < machine_cpus):
        cores = max(1, cores // workers)
    given = place.found.bound and ("SLURM_GPUS_PER_TASK" in host.environ or len(gpus) < workers)
    if not given:
        gpus = share_gpus(gpus, workers)[number]
    return replace(host, cores=cores, gpus=gpus)


def count_machine_cpus() -> int:
    """Return the CPUs of this machine or container: a scheduler that binds its tasks leaves process 1 unbound."""
    try:
        return len(os.sched_getaffinity(1))
    except OSError:
        return os.cpu_count() or 1


def met_addresses(rendezvous: Address, peers: Peers) -> list[str]:
    """Return each worker's address, once all have joined: where each came from, with the port that it named."""
    found = {0: rendezvous}
    for rank, (identity, peer) in peers.items():
        address = Address(peer, identity.port)
        # From the leader's own host it comes over loopback, where no other host could find it.
        found[rank] = Address(rendezvous.host, identity.port) if address.is_loopback else address
    return [str(found[rank]) for rank in sorted(found)]


def commands(place: Placement, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return (host, command) pairs that start the cluster."""
    command = shlex.join(["tfmp", "worker", *arguments])
    size, source, cluster = place.found.size, place.found.source, place.cluster
    if source == "slurm":
        return [("in the allocation", f"srun -n {size} --kill-on-bad-exit=1 {command}")]
    if source == "mpi":
        return [("here", f"mpirun -n {size} --bind-to none {command}")]
    if source == "kubernetes":
        return [("in each pod", command)]
    hosts = [address.host for address in cluster.addresses]
    if source == "tf-config":
        configs = [shlex.quote(make_tf_config(cluster, *cluster.task(rank))) for rank in range(size)]
        return [(hosts[rank], f"TF_CONFIG={config} {command}") for rank, config in enumerate(configs)]
    if place.found.rendezvous is not None:
        hosts[1:] = ["another host"] * (size - 1)
    return [(host, f"{command} --index {rank}") for rank, host in enumerate(hosts)]
