"""A worker's place in its cluster: its rank and address, its part of its machine, what to type on each host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.errors import UsageError
from tfmp.planning.host import share_gpus
from tfmp.planning.inputs import Machine
from tfmp.rendezvous.leader import Peers
from tfmp.rendezvous.peer_status import Roster

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan


@dataclass(frozen=True)
class Placement:
    """This worker in its cluster.

    Attributes:
        found: Where the cluster is described.
        rank: This worker's rank.
        cluster: All addresses; where the workers learn of each other, a stand-in that has the right ones for rank 0
            and this worker.
        names: By rank.
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
        """The cluster, for comparison."""
        if self.found.rendezvous is not None:
            return f"{self.found.size} workers that meet at {self.found.rendezvous}"
        chief = "chief " if self.cluster.chief else ""
        return chief + ",".join(map(str, self.cluster.addresses))

    @property
    def roster(self) -> Roster:
        """The group as it is known before the workers have met."""
        addresses: list[str | None] = [str(address) for address in self.cluster.addresses]
        if self.found.rendezvous is not None:
            addresses = [address if rank in (0, self.rank) else None for rank, address in enumerate(addresses)]
        return Roster(self.names, addresses)


def find_placement(found: Discovered, rank: int) -> Placement:
    """Return the place of the worker of this rank.

    Raises:
        UsageError: The ports from that of ``cluster.rendezvous`` on are not enough.
    """
    if found.spec is not None:
        cluster = found.spec
    else:
        # A port of its own for each rank, as several may be on one host; only rank 0's host is known.
        assert found.rendezvous is not None
        host, port = found.rendezvous.host, found.rendezvous.port
        if port + found.size - 1 > 65535:
            raise UsageError(
                f"expected room for {found.size} ports from the one given, received {found.rendezvous}",
                where="cluster.rendezvous",
            )
        cluster = ClusterSpec(tuple(Address(host, port + other) for other in range(found.size)))
    tasks = (cluster.task(other) for other in range(cluster.size))
    return Placement(found, rank, cluster, tuple(f"{kind} {index}" for kind, index in tasks))


def own_dir(wanted: Path | None, rank: int) -> Path | None:
    """The chief's folder is the run folder; the others', which a shared file system may hold too, lie in it."""
    return wanted if wanted is None or rank == 0 else wanted / f"worker-{rank}"


def neighbours(place: Placement) -> tuple[int, int]:
    """This worker's number among the workers on its host, and how many they are."""
    if place.found.local is not None:
        return place.found.local
    hosts = [address.identity[0] for address in place.cluster.addresses]
    return hosts[: place.rank].count(hosts[place.rank]), hosts.count(hosts[place.rank])


def share_machine(machine: Machine, place: Placement, machine_cpus: int) -> Machine:
    """This worker's part of a machine that it shares with other workers of the cluster.

    Args:
        machine: What this process may use.
        place: Its place.
        machine_cpus: CPUs of the whole machine, or container: a scheduler that has bound each worker to CPUs of its own
            gave this process fewer.

    Raises:
        UsageError: GPUs that cannot be shared equally.
    """
    number, together = neighbours(place)
    if together == 1:
        return machine
    cores, gpus = machine.cores, machine.gpus
    if not (place.found.bound and len(machine.cpus) < machine_cpus):
        cores = max(1, cores // together)
    given = place.found.bound and ("SLURM_GPUS_PER_TASK" in machine.environ or len(gpus) < together)
    if gpus and not given:
        share = share_gpus(gpus, together)[number]
        gpus = tuple(share.split(",")) if share else ()
    return replace(machine, cores=cores, gpus=gpus)


def count_machine_cpus() -> int:
    """CPUs of this machine, or container: a scheduler that binds its tasks to CPUs leaves the first process alone."""
    try:
        return len(os.sched_getaffinity(1))
    except OSError:
        return os.cpu_count() or 1


def met_addresses(rendezvous: Address, peers: Peers) -> list[str]:
    """Each worker's address, now that all have come: where they came from, with the port that each one named."""
    found = {0: rendezvous}
    for rank, (identity, peer) in peers.items():
        address = Address(peer, identity.port)
        # From the leader's own host it comes over loopback, where no other host could find it.
        found[rank] = Address(rendezvous.host, identity.port) if address.is_loopback else address
    return [str(found[rank]) for rank in sorted(found)]


def commands(place: Placement, plan: Plan, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Where to type what."""
    command = shlex.join(["tfmp", "worker", *arguments])
    size, source = place.found.size, place.found.source
    if source == "slurm":
        return [("in the allocation", f"srun -n {size} --kill-on-bad-exit=1 {command}")]
    if source == "mpi":
        return [("here", f"mpirun -n {size} --bind-to none {command}")]
    if source == "kubernetes":
        return [("in each pod", command)]
    hosts = [address.host for address in place.cluster.addresses]
    if source == "tf-config":
        return [(hosts[one.rank], f"TF_CONFIG={shlex.quote(one.tf_config or '')} {command}") for one in plan.workers]
    if place.found.rendezvous is not None:
        hosts[1:] = ["another host"] * (size - 1)
    return [(hosts[one.rank], f"{command} --index {one.rank}") for one in plan.workers]
