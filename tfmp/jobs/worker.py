"""``tfmp worker``: one worker of a cluster of several hosts.

A launcher without TensorFlow plus one worker process: while TensorFlow waits for its peers no signal reaches Python,
so that somebody else has to wait, to tell who is missing, and to end it.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.cluster.discovery.choose import Asked, Source, discover
from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.rendezvous.findings import Roster
from tfmp.cluster.rendezvous.identity import Identity, agreed_values, installed_versions
from tfmp.cluster.rendezvous.leader import Peers
from tfmp.cluster.rendezvous.protocol import Report, Waits
from tfmp.cluster.rendezvous.session import Session
from tfmp.cluster.resources import share_gpus
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.config import Resolved
from tfmp.data.cache import CachedDataset, prepare
from tfmp.errors import EXIT_OK, TfmpError, UsageError
from tfmp.jobs.environment import helper_environment
from tfmp.jobs.folder import claim_run_folder, default_run_dir
from tfmp.jobs.group import TICK_S, GroupWatch, Interrupted, gather
from tfmp.jobs.planning import Machine, plan_cluster_run
from tfmp.jobs.run import PRELOAD, Run, TrainOptions, be_quiet, complain, headline, print_plan, say
from tfmp.launch.signals import SignalInbox
from tfmp.launch.spec import signal_name
from tfmp.launch.supervisor import STOP_SIGNALS
from tfmp.launch.zygote_client import Zygote
from tfmp.runfolder import RunFolder

if TYPE_CHECKING:
    from tfmp.cluster.plan import Plan
    from tfmp.config import RunConfig


@dataclass(frozen=True)
class WorkerOptions:
    """What the command line says beside the configuration.

    Attributes:
        index: ``--index`` as typed.
        source: ``--cluster``.
        arguments: The command line without ``--index``, for the commands of the other hosts.
        common: What ``tfmp train`` takes too.
    """

    index: str | None
    source: Source
    arguments: Sequence[str]
    common: TrainOptions


@dataclass(frozen=True)
class _Place:
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
        return self.cluster.address(self.rank)

    @property
    def text(self) -> str:
        """The cluster, for comparison."""
        if self.found.rendezvous is not None:
            return f"{self.found.size} workers that meet at {self.found.rendezvous}"
        parts = [f"{'chief ' if self.cluster.chief and rank == 0 else ''}{address}"
                 for rank, address in enumerate(self.cluster.addresses)]  # fmt: skip
        return ",".join(parts)

    @property
    def roster(self) -> Roster:
        addresses: list[str | None] = [str(address) for address in self.cluster.addresses]
        if self.found.rendezvous is not None:
            addresses = [address if rank in (0, self.rank) else None for rank, address in enumerate(addresses)]
        return Roster(self.names, addresses)


def worker(resolved: Resolved, options: WorkerOptions) -> int:
    """Be one worker and return the exit code.

    Raises:
        UsageError: Something is wrong with the settings, the cluster, the data or the machine.
        TfmpError: The group did not start.
    """
    tell = be_quiet if options.common.verbosity < 0 else say
    found = _discover(resolved, options, tell)
    if found.rank is None:
        tell("evaluator: nothing to do, every worker takes its share of the validation")
        return EXIT_OK
    config, place = resolved.config, _place(found, found.rank)
    _check(resolved, place)
    machine = _share(Machine.here(), place)
    dataset = prepare(config.data, tell)
    plan = plan_cluster_run(config, dataset.header, machine, place.cluster, place.rank)
    env, notices = helper_environment(
        machine.environ, plan.workers[place.rank].env, verbose=options.common.verbosity > 0
    )
    for line in (*plan.warnings, *notices):
        tell(f"warning: {line}")
    tell(headline(plan))
    identity = _identity(config, place, plan, dataset)
    with SignalInbox(STOP_SIGNALS) as inbox, Zygote.start(PRELOAD, private_network="off", env=env) as zygote:
        with Session(
            identity,
            place.roster,
            Waits(
                start_timeout_s=config.cluster.start_timeout_s,
                heartbeat_timeout_s=config.cluster.heartbeat_timeout_s,
                beat_every_s=min(1.0, config.cluster.heartbeat_timeout_s / 5),
            ),
            tell,
            token=config.cluster.token,
            loopback=("::1" if ":" in place.own.host else "127.0.0.1") if place.own.is_loopback else None,
            compose=lambda peers: {"workers": _addresses(found.rendezvous, peers)} if found.rendezvous else {},
        ) as session:
            try:
                gather(session, zygote, inbox)
            except Interrupted as stop:
                complain(f"interrupted by {signal_name(stop.signum)} while waiting for the other workers")
                return 128 + stop.signum
            return _train(resolved, options, place, machine, dataset, session, zygote, inbox)


def dry_run(resolved: Resolved, options: WorkerOptions) -> int:
    """Print what was found, the plan, each worker's TF_CONFIG and the command of each host; start nothing."""
    asked = options if options.index is not None else replace(options, index="0")
    manual = resolved.config.cluster.worker_addresses is not None
    found = _discover(resolved, asked if manual else options, say)
    if found.rank is None:
        say("evaluator: nothing to do, every worker takes its share of the validation")
        return EXIT_OK
    config, place = resolved.config, _place(found, found.rank)
    _check(resolved, place)
    dataset = prepare(config.data, say)
    plan = plan_cluster_run(config, dataset.header, _share(Machine.here(), place), place.cluster, place.rank)
    if found.rendezvous is not None:
        plan = replace(plan, workers=tuple(replace(one, address=None, tf_config=None) for one in plan.workers))
    print_plan(resolved, plan)
    print("commands:")
    for where, command in _commands(place, plan, options.arguments):
        print(f"  {where}: {command}")
    print("dry run: nothing was started")
    return EXIT_OK


def _discover(resolved: Resolved, options: WorkerOptions, tell: Any) -> Discovered:
    cluster = resolved.config.cluster
    origin = resolved.origin("cluster.workers")
    asked = Asked(
        source=options.source,
        addresses=cluster.worker_addresses,
        count=None if origin == "default" or cluster.worker_addresses is not None else cluster.worker_count,
        index=options.index,
        rendezvous=cluster.rendezvous,
        base_port=cluster.base_port,
    )
    if "TF_CONFIG" in os.environ and not os.environ["TF_CONFIG"].strip():
        tell("note: TF_CONFIG is empty, which counts as unset")
    found = discover(asked, os.environ, hostname=_hostname(), parent_pid=os.getppid())
    tell(f"cluster: {found.found}")
    if found.warning is not None:
        tell(f"warning: {found.warning}")
    if found.source == "manual" and os.environ.get("TF_CONFIG", "").strip():
        tell("note: TF_CONFIG is set and not used: addresses and --index were given")
    if asked.count is not None and asked.count != found.size:
        if origin.startswith("--"):
            raise UsageError(
                f"expected {found.size} workers, as {found.source} says, received {asked.count}",
                where=origin,
                hint=f"leave {origin} out",
            )
        tell(f"note: cluster.workers ({asked.count}, {origin}) is for tfmp train; {found.source} says {found.size}")
    return found


def _hostname() -> str:
    """This host's name with its domain where that is known, as a pod's is in /etc/hosts."""
    name = socket.gethostname()
    full = socket.getfqdn(name) if "KUBERNETES_SERVICE_HOST" in os.environ else name
    return full if full.startswith(name) else name


def _place(found: Discovered, rank: int) -> _Place:
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
    return _Place(found, rank, cluster, tuple(f"{kind} {index}" for kind, index in tasks))


def _check(resolved: Resolved, place: _Place) -> None:
    if resolved.config.cluster.strategy != "multi-worker":
        raise UsageError(
            f"expected multi-worker, received {resolved.config.cluster.strategy}",
            where="cluster.strategy",
            hint="tfmp train --strategy mirrored runs in one process",
        )
    wanted = _own_dir(resolved.config.run.dir, place.rank)
    if wanted is not None and (wanted / "config.yaml").exists():
        raise UsageError(
            "this folder already holds a run, which is never overwritten",
            where=str(wanted),
            hint="choose another --run-dir, or remove the folder first",
        )


def _own_dir(wanted: Path | None, rank: int) -> Path | None:
    """The chief's folder is the run folder; the others', which a shared file system may hold too, lie in it."""
    return wanted if wanted is None or rank == 0 else wanted / f"worker-{rank}"


def _share(machine: Machine, place: _Place) -> Machine:
    """This worker's part of a machine that it shares with other workers of the cluster."""
    if place.found.local is not None:
        number, together = place.found.local
    else:
        hosts = [address.identity[0] for address in place.cluster.addresses]
        number, together = hosts[: place.rank].count(hosts[place.rank]), hosts.count(hosts[place.rank])
    if together == 1:
        return machine
    cores, gpus = machine.cores, machine.gpus
    if not (place.found.bound and len(machine.cpus) < _machine_cpus()):
        cores = max(1, cores // together)
    given = place.found.bound and ("SLURM_GPUS_PER_TASK" in machine.environ or len(gpus) < together)
    if gpus and not given:
        share = share_gpus(gpus, together)[number]
        gpus = tuple(share.split(",")) if share else ()
    return replace(machine, cores=cores, gpus=gpus)


def _machine_cpus() -> int:
    """CPUs that this machine, or container, has: a launcher that binds its processes leaves its first process alone."""
    try:
        return len(os.sched_getaffinity(1))
    except OSError:
        return os.cpu_count() or 1


def _identity(config: RunConfig, place: _Place, plan: Plan, dataset: CachedDataset) -> Identity:
    agreed = agreed_values(
        config,
        place.text,
        installed_versions(),
        content_of_the_data=dataset.header.data_sha256[:16],
        devices_of_each_worker=f"{plan.workers[place.rank].replicas} {plan.device.upper()}",
    )
    return Identity(place.rank, agreed, socket.gethostname(), os.getpid(), place.found.run, place.own.port)


def _addresses(rendezvous: Address | None, peers: Peers) -> list[str]:
    """Each worker's address, now that all have come: where they came from, with the port that each one named."""
    assert rendezvous is not None
    found = {0: rendezvous}
    for rank, (identity, peer) in peers.items():
        address = Address(peer, identity.port)
        # From the leader's own host it comes over loopback, where no other host could find it.
        found[rank] = Address(rendezvous.host, identity.port) if address.is_loopback else address
    return [str(found[rank]) for rank in sorted(found)]


def _train(
    resolved: Resolved,
    options: WorkerOptions,
    place: _Place,
    machine: Machine,
    dataset: CachedDataset,
    session: Session,
    zygote: Zygote,
    inbox: SignalInbox,
) -> int:
    """All are here: make the run folder, run the worker, leave with the others."""
    tell = be_quiet if options.common.verbosity < 0 else say
    config, name = resolved.config, place.names[place.rank]
    try:
        cluster = place.cluster
        if place.found.rendezvous is not None:
            cluster = ClusterSpec.from_addresses(session.start_message["workers"])
        plan = plan_cluster_run(config, dataset.header, machine, cluster, place.rank)
        folder = _claim(resolved, options, cluster, place.rank)
    except TfmpError as error:
        session.failed(Report(f"{name} could not start: {error.what}", error.where, error.hint, error.exit_code))
        raise
    tell(f"run folder: {folder.path}")
    run = Run(config, plan, folder, dataset, options.common)
    watch = GroupWatch(session, run, place.rank, name)
    announce = f"starting: all {cluster.size} workers are here and agree"
    try:
        result = run.watch(zygote, announce=announce, on_event=watch.on_event, on_tick=watch.on_tick, tick_s=TICK_S)
    except TfmpError as error:
        session.failed(Report(f"{name} could not start: {error.what}", error.where, error.hint, error.exit_code))
        raise
    return watch.finish(result, inbox)


def _claim(resolved: Resolved, options: WorkerOptions, cluster: ClusterSpec, rank: int) -> RunFolder:
    """Make this host's folder, with the configuration that was run: the cluster as it was found."""
    section = resolved.config.cluster.model_copy(
        update={"workers": tuple(map(str, cluster.addresses)), "base_port": None, "rendezvous": None}
    )
    run = Resolved(resolved.config.model_copy(update={"cluster": section}), resolved.origins)
    suffix = f"-worker-{rank}" if rank else ""

    def default() -> Path:
        folder = default_run_dir(resolved.config.run.name, options.common.config_file, datetime.now())
        return folder.with_name(folder.name + suffix)

    return claim_run_folder(_own_dir(resolved.config.run.dir, rank), default, run.to_yaml())


def _commands(place: _Place, plan: Plan, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Where to type what."""
    command = shlex.join(["tfmp", "worker", *arguments])
    size, source = place.found.size, place.found.source
    if source == "slurm":
        return [("in the allocation", f"srun -n {size} --kill-on-bad-exit=1 {command}")]
    if source == "mpi":
        return [("here", f"mpirun -n {size} --bind-to none {command}")]
    if source == "kubernetes":
        return [("in each pod", command)]
    hosts: Mapping[int, str] = {one.rank: str(place.cluster.address(one.rank).host) for one in plan.workers}
    if source == "tf-config":
        return [(hosts[one.rank], f"TF_CONFIG={shlex.quote(one.tf_config or '')} {command}") for one in plan.workers]
    if place.found.rendezvous is not None:
        return [
            (hosts[0] if not one.rank else "host of its own", f"{command} --index {one.rank}") for one in plan.workers
        ]
    return [(hosts[one.rank], f"{command} --index {one.rank}") for one in plan.workers]
