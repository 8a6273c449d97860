"""``tfmp train``: check, plan, start the fork server, run the workers, record and report."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tfmp.agent.controller import Controller
from tfmp.agent.failures.injection import parse_fault
from tfmp.agent.options import TrainOptions
from tfmp.agent.reporter import TrainingReporter
from tfmp.agent.restart_policy import RestartPolicy
from tfmp.agent.resume import (
    check_same_data,
    check_same_run,
    choose,
    earlier_run,
    finished_epochs,
    nothing_left,
    same_collective,
    update_saved_config,
)
from tfmp.agent.workload import PRELOAD, TrainingWorkload, training_stop_policy
from tfmp.commands.output import headline, print_plan
from tfmp.commands.user_code import check_user_code
from tfmp.data.cache import prepare
from tfmp.errors import EXIT_OK
from tfmp.planning.environment import fork_server_environment
from tfmp.planning.host import Host
from tfmp.planning.plan import make_plan
from tfmp.report.output import lasting_output
from tfmp.rundir.claim import claim_run_folder, default_run_dir, locked
from tfmp.text import noop, say
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.ports import HeldPorts, hold_ports
from tfmp.workers.signals import SignalInbox

if TYPE_CHECKING:
    from tfmp.config import Resolved, RunConfig

__all__ = ["TrainOptions", "dry_run", "train"]


def train(resolved: Resolved, options: TrainOptions) -> int:
    """Run a local training and return the exit code.

    Raises:
        UsageError: Something is wrong with the settings, the data or the machine; no process was started.
        TfmpError: The run could not be started.
    """
    config = resolved.config
    tell = noop if options.verbosity < 0 else say
    host = Host.here()
    _check(resolved, options)
    with ExitStack() as stack:
        stack.enter_context(lasting_output())
        earlier = earlier_run(config.run.dir, options.resume, tell)
        if earlier is not None:
            stack.enter_context(locked(earlier))
            options.on_folder(earlier.path)
            check_same_run(earlier, resolved)
            if (epochs := finished_epochs(earlier, config)) is not None:
                tell(nothing_left(earlier.path, epochs))
                return EXIT_OK
        dataset = prepare(config.data, tell)
        plan = make_plan(config, dataset.header, host)
        held = partial(held_ports, plan.port_count, config.cluster.base_port)
        ports = stack.enter_context(held())
        point = None
        if earlier is not None:
            update_saved_config(earlier, resolved)
            point = choose(earlier, tell)
            check_same_data(point, dataset.header.data_sha256)
            config = same_collective(config, point, plan.replicas)
            plan = make_plan(config, dataset.header, host)
        folder = earlier or claim_run_folder(
            config.run.dir,
            lambda: default_run_dir(config.run.name, options.config_file, config.data.name, datetime.now()),
            resolved.to_yaml(),
        )
        if earlier is None:
            stack.enter_context(locked(folder))
            options.on_folder(folder.path)

        env, notices = fork_server_environment(host.environ, plan.workers[0].env, verbose=options.verbosity > 0)
        start_fork_server = partial(ForkServer.start, PRELOAD, private_network=private_network(config), env=env)
        inbox = stack.enter_context(SignalInbox(STOP_SIGNALS))
        group = stack.enter_context(
            ForkServerGroup(
                start_fork_server,
                inbox,
                training_stop_policy(config),
                import_timeout_s=config.cluster.start_timeout_s,
            )
        )
        for line in (*plan.warnings, *notices):
            tell(f"warning: {line}")
        tell(headline(plan))
        tell(f"run folder: {folder.path}")
        if earlier is not None:
            tell(f"resuming at {point.header.describe()}" if point else "no checkpoint: from the beginning")
            if point and point.header.facts["stopped"]:
                tell("note: a callback had ended the training there: no more epochs are trained")
            folder.remove_temporaries()
        workload = TrainingWorkload(
            config,
            plan,
            folder,
            dataset,
            hold_ports=held,
            ports=ports,
            faults=[parse_fault(text, len(plan.workers)) for text in options.faults],
            point=point,
            tell=tell,
        )
        policy = RestartPolicy(config.run.max_restarts, ports_are_free=config.cluster.base_port is None)
        reporter = TrainingReporter(config, plan, folder, options)
        return Controller(group, workload, policy, reporter).run()


def dry_run(resolved: Resolved, options: TrainOptions) -> int:
    """Print the settings, where each comes from, and the plan; start nothing, write nothing but the data cache."""
    config = resolved.config
    _check(resolved, options)
    dataset = prepare(config.data, say)
    plan = make_plan(config, dataset.header, Host.here())
    with held_ports(plan.port_count, config.cluster.base_port) as ports:
        plan = plan.with_ports(ports.ports) if ports else plan
    print_plan(resolved, plan)
    print("dry run: nothing was started")
    return EXIT_OK


def _check(resolved: Resolved, options: TrainOptions) -> None:
    """Refuse what can be refused before anything else happens."""
    for text in options.faults:
        parse_fault(text, resolved.config.cluster.worker_count)
    check_user_code(resolved)


def private_network(config: RunConfig) -> Any:
    """Where no server listens there is nothing to protect, and the user's own code may use the network."""
    cluster = config.cluster
    alone = not cluster.is_multi_process or cluster.worker_count == 1
    return "off" if alone and cluster.private_network == "auto" else cluster.private_network


def held_ports(wanted: int, base_port: int | None) -> AbstractContextManager[HeldPorts | None]:
    """``wanted`` held ports, or ``None`` for none."""
    return hold_ports(wanted, base_port) if wanted else nullcontext()
