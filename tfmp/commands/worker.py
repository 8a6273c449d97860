"""``tfmp worker``: one worker of a cluster of several hosts.

A launcher without TensorFlow plus one worker process: while TensorFlow waits for its peers no signal reaches Python,
so that somebody else has to wait, to tell who is missing, and to end it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.agent.cluster_agent import TICK_S, ClusterAgent, WaitInterrupted, gather, leave_after_leader
from tfmp.agent.controller import Controller
from tfmp.agent.failures.injection import parse_fault
from tfmp.agent.placement import (
    commands,
    met_addresses,
    own_dir,
)
from tfmp.agent.restart_policy import RestartPolicy
from tfmp.agent.resume import (
    check_same_data,
    finished_message,
    nothing_left,
    point_from_leader,
    update_saved_config,
)
from tfmp.agent.shm_setup import compose_shm_setup, settle_collective, shared_shm_setup, shm_domain
from tfmp.agent.workload import PRELOAD, TrainingWorkload, training_stop_policy
from tfmp.cluster.spec import ClusterSpec
from tfmp.commands.output import headline, print_plan
from tfmp.commands.worker_setup import PreparedWorker, WorkerOptions, prepare_worker
from tfmp.config import Resolved
from tfmp.errors import EXIT_OK, TfmpError
from tfmp.planning.environment import fork_server_environment
from tfmp.planning.plan import make_plan
from tfmp.rendezvous.identity import Identity, agreed_values, installed_versions
from tfmp.rendezvous.leader import Peers
from tfmp.rendezvous.protocol import Report, Waits
from tfmp.rendezvous.session import Session
from tfmp.report.output import lasting_output
from tfmp.rundir.claim import claim_run_folder, default_run_dir, locked
from tfmp.rundir.layout import RunFolder
from tfmp.text import eprint, noop, say
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import signal_name

if TYPE_CHECKING:
    from tfmp.config import RunConfig
    from tfmp.planning.plan import Plan


def worker(resolved: Resolved, options: WorkerOptions) -> int:
    """Be one worker and return the exit code.

    Raises:
        UsageError: Something is wrong with the settings, the cluster, the data or the machine.
        TfmpError: The group did not start.
    """
    with lasting_output():
        return _work(resolved, options)


def _work(resolved: Resolved, options: WorkerOptions) -> int:
    tell = noop if options.common.verbosity < 0 else say
    prepared = prepare_worker(resolved, options, tell)
    if prepared is None:
        return EXIT_OK
    place, plan = prepared.place, prepared.plan
    if place.found.source == "mpi":
        # Open MPI gives every process a terminal of its own, and then writes what they show over each other.
        options = replace(options, common=replace(options.common, live=False))
    env, notices = fork_server_environment(
        prepared.host.environ, plan.workers[place.rank].env, verbose=options.common.verbosity > 0
    )
    for line in (*prepared.warnings, *plan.warnings, *notices):
        tell(f"warning: {line}")
    tell(headline(plan))
    earlier = prepared.going_on.folder
    with nullcontext() if earlier is None else locked(earlier):
        return _meet_and_train(resolved, options, prepared, env, tell)


def _meet_and_train(
    resolved: Resolved,
    options: WorkerOptions,
    prepared: PreparedWorker,
    env: Mapping[str, str],
    tell: Callable[[str], None],
) -> int:
    config, place = resolved.config, prepared.place
    identity = _identity(config, prepared)
    session = Session(
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
        compose=_compose(config, prepared, identity),
    )
    start_fork_server = partial(ForkServer.start, PRELOAD, private_network="off", env=env)
    timeout_s = config.cluster.start_timeout_s
    with (
        session,
        SignalInbox(STOP_SIGNALS) as inbox,
        ForkServerGroup(
            start_fork_server, inbox, training_stop_policy(config), import_timeout_s=timeout_s, tick_s=TICK_S
        ) as group,
    ):
        try:
            gather(session, group.fork_server, inbox)
        except WaitInterrupted as stop:
            eprint(f"interrupted by {signal_name(stop.signum)} while waiting for the other workers")
            return 128 + stop.signum
        try:
            if (epochs := finished_message(session.start_message)) is not None:
                tell(nothing_left(resolved.config.run.dir or "the run", epochs))
                leave_after_leader(session, place.rank)
                return EXIT_OK
            return _train(resolved, options, prepared, session, group, inbox)
        except TfmpError as error:
            what = f"{place.names[place.rank]} could not start: {error.what}"
            session.failed(Report(what, error.where, error.hint, error.exit_code))
            raise


def dry_run(resolved: Resolved, options: WorkerOptions) -> int:
    """Print what was found, the plan, each worker's TF_CONFIG and the command of each host; start nothing."""
    if options.index is None and resolved.config.cluster.worker_addresses is not None:
        options = replace(options, index="0")
    prepared = prepare_worker(resolved, options, say)
    if prepared is None:
        return EXIT_OK
    plan, place = prepared.plan, prepared.place
    if place.found.rendezvous is not None:  # the addresses are a stand-in
        plan = replace(plan, workers=tuple(replace(worker, address=None, tf_config=None) for worker in plan.workers))
    print_plan(resolved, plan)
    for warning in prepared.warnings:
        print(f"warning: {warning}")
    print("commands:")
    for where, command in commands(place, options.arguments):
        print(f"  {where}: {command}")
    print("dry run: nothing was started")
    return EXIT_OK


def _compose(config: RunConfig, prepared: PreparedWorker, own: Identity) -> Callable[[Peers], Mapping[str, Any]]:
    """What the leading launcher tells all as they start, from who has joined."""
    rendezvous = prepared.place.found.rendezvous

    def compose(peers: Peers) -> Mapping[str, Any]:
        everyone = [own, *(peers[rank][0] for rank in sorted(peers))]
        told = prepared.going_on.to_message()
        if rendezvous is not None:
            told["workers"] = met_addresses(rendezvous, peers)
        plan = _met_plan(config, prepared, told)
        places, pids = [member.place for member in everyone], [member.pid for member in everyone]
        return told | compose_shm_setup(plan, places, pids)

    return compose


def _met_plan(config: RunConfig, prepared: PreparedWorker, told: Mapping[str, Any]) -> Plan:
    """The plan, with the addresses that were only found when the workers met."""
    if "workers" not in told:
        return prepared.plan
    cluster = ClusterSpec.from_addresses(told["workers"])
    return make_plan(config, prepared.dataset.header, prepared.host, cluster, [prepared.place.rank])


def _identity(config: RunConfig, prepared: PreparedWorker) -> Identity:
    place, plan = prepared.place, prepared.plan
    agreed = agreed_values(
        config,
        place.text,
        installed_versions(),
        content_of_the_data=prepared.dataset.header.data_sha256[:16],
        devices_of_each_worker=f"{plan.workers[place.rank].replicas} {plan.device.upper()}",
    )
    host, pid = socket.gethostname(), os.getpid()
    return Identity(place.rank, agreed, host, pid, place.found.run, place.own.port, shm_domain())


def _train(
    resolved: Resolved,
    options: WorkerOptions,
    prepared: PreparedWorker,
    session: Session,
    group: ForkServerGroup,
    inbox: SignalInbox,
) -> int:
    """All are here: make the run folder, run the worker, leave with the others."""
    place, config = prepared.place, resolved.config
    told = session.start_message
    cluster = ClusterSpec.from_addresses(told["workers"]) if "workers" in told else place.cluster
    plan = _met_plan(config, prepared, told)
    settled = settle_collective(plan, told, config.cluster.collective, place.names)
    if settled is not plan and options.common.verbosity >= 0:
        say(f"note: collective {settled.collective.name}: {settled.collective.reason}")
    plan = settled
    earlier = prepared.going_on.folder
    point = point_from_leader(told, config.run.dir) if place.rank else prepared.going_on.point
    check_same_data(point, prepared.dataset.header.data_sha256)
    folder = _claim(resolved, options, cluster, place.rank, earlier)
    if options.common.verbosity >= 0:
        say(f"run folder: {folder.path}")
    if earlier is not None or point is not None:
        if options.common.verbosity >= 0:
            say(f"resuming at {point.header.describe()}" if point else "no checkpoint: from the beginning")
        folder.remove_temporaries()
    rank = place.rank
    agent = ClusterAgent(
        session, inbox, rank, place.names[rank], place.roster.label(rank), config, plan, folder, options.common
    )
    lock = nullcontext() if earlier is not None else locked(folder)
    with lock, shared_shm_setup(plan, rank, told) as shm_setup:
        workload = TrainingWorkload(
            config,
            plan,
            folder,
            prepared.dataset,
            faults=[parse_fault(text, len(plan.workers)) for text in options.common.faults],
            point=point,
            shm_setup=shm_setup,
            tell=noop,
        )
        return Controller(group, workload, RestartPolicy(max_restarts=0), agent).run()


def _claim(
    resolved: Resolved, options: WorkerOptions, cluster: ClusterSpec, rank: int, earlier: RunFolder | None
) -> RunFolder:
    """Make this host's folder, with the configuration that was run: the cluster as it was found."""
    section = resolved.config.cluster.model_copy(
        update={"workers": tuple(map(str, cluster.addresses)), "base_port": None, "rendezvous": None}
    )
    config = resolved.config
    run = Resolved(resolved.config.model_copy(update={"cluster": section}), resolved.origins)
    if earlier is not None:
        update_saved_config(earlier, run)
        return earlier
    suffix = f"-worker-{rank}" if rank else ""

    def default() -> Path:
        folder = default_run_dir(config.run.name, options.common.config_file, config.data.name, datetime.now())
        return folder.with_name(folder.name + suffix)

    return claim_run_folder(own_dir(resolved.config.run.dir, rank), default, run.to_yaml())
