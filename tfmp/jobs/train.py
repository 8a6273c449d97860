"""``tfmp train``: check, plan, start the helper process, run the workers, record and report."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tfmp.data.cache import prepare
from tfmp.errors import EXIT_OK
from tfmp.jobs.environment import helper_environment
from tfmp.jobs.folder import claim_run_folder, default_run_dir
from tfmp.jobs.planning import Machine, local_port_count, plan_local_run
from tfmp.jobs.run import PRELOAD, Run, TrainOptions, be_quiet, headline, print_plan, say
from tfmp.launch.ports import HeldPorts, hold_ports
from tfmp.launch.zygote_client import Zygote
from tfmp.report.numbers import count

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
    tell = be_quiet if options.verbosity < 0 else say
    port_count = local_port_count(config)
    machine = Machine.here()
    dataset = prepare(config.data, tell)
    with _held(port_count, config.cluster.base_port) as ports:
        plan = plan_local_run(config, dataset.header, machine, ports.ports if ports else ())
        env, notices = helper_environment(machine.environ, plan.workers[0].env, verbose=options.verbosity > 0)
        folder = claim_run_folder(
            config.run.dir,
            lambda: default_run_dir(config.run.name, options.config_file, datetime.now()),
            resolved.to_yaml(),
        )
        with Zygote.start(PRELOAD, private_network=_private_network(config), env=env) as zygote:
            for line in (*plan.warnings, *notices):
                tell(f"warning: {line}")
            tell(headline(plan))
            tell(f"run folder: {folder.path}")
            run = Run(config, plan, folder, dataset, options)
            announce = f"starting: importing TensorFlow, then {count(len(plan.workers), 'worker')}"
            # Every worker has its own port once it is ready.
            return run.finish(run.watch(zygote, announce=announce, on_ready=ports.release if ports else None))


def dry_run(resolved: Resolved) -> int:
    """Print the settings, where each comes from, and the plan; start nothing, write nothing but the data cache."""
    config = resolved.config
    dataset = prepare(config.data, say)
    with _held(local_port_count(config), config.cluster.base_port) as ports:
        plan = plan_local_run(config, dataset.header, Machine.here(), ports.ports if ports else ())
    print_plan(resolved, plan)
    print("dry run: nothing was started")
    return EXIT_OK


def _private_network(config: RunConfig) -> Any:
    """The user's own model may need the network; ``on`` and ``off`` are obeyed."""
    wanted = config.cluster.private_network
    if config.cluster.strategy == "mirrored":
        return "off"
    own_code = config.model.factory is not None or config.training.callbacks
    return "off" if wanted == "auto" and own_code else wanted


def _held(wanted: int, base_port: int | None) -> AbstractContextManager[HeldPorts | None]:
    """``wanted`` held ports, or ``None`` for none."""
    return hold_ports(wanted, base_port) if wanted else nullcontext()
