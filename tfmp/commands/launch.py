"""``tfmp launch``: anyone's program, N times, as one supervised cluster on this machine."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfmp.agent.controller import Attempt, Controller, Reporter, Workload
from tfmp.agent.monitor import Watch
from tfmp.agent.restart_policy import Restart, RestartPolicy
from tfmp.cluster.spec import ClusterSpec
from tfmp.cluster.tf_config import make_tf_config
from tfmp.errors import TfmpError, UsageError
from tfmp.planning.environment import no_proxy_env, thread_env
from tfmp.planning.host import GPU_VARIABLE, Host, oversubscribed, share_gpus
from tfmp.report.output import lasting_output
from tfmp.rundir.temporary import temporary_folder
from tfmp.text import eprint, noop, seconds
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.group import Line
from tfmp.workers.lifecycle import STOP_SIGNALS, StopPolicy
from tfmp.workers.ports import hold_ports
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from tfmp.agent.failures.diagnosis import Diagnosis

_HOST = "127.0.0.1"
_SEED_VARIABLE = "TFMP_SEED"


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line says.

    Attributes:
        workers: Copies of the program.
        base_port: Port of worker 0; ``None``: free ports.
        log_dir: Where to keep each worker's output; ``None``: nowhere.
        grace_period_s: From the request to stop to SIGKILL.
        max_restarts: Restarts of the whole group.
        log_workers: Ranks whose lines are shown; ``None``: all.
        quiet: Show none.
    """

    workers: int
    base_port: int | None = None
    log_dir: Path | None = None
    grace_period_s: float = 10.0
    max_restarts: int = 0
    log_workers: frozenset[int] | None = None
    quiet: bool = False


def launch(command: tuple[str, ...], options: LaunchOptions) -> int:
    """Run ``command`` once a worker and return the exit code.

    Each copy gets TF_CONFIG, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TFMP_ATTEMPT,
    TFMP_SEED, its share of threads and GPUs, and proxy exceptions for the cluster.

    Raises:
        UsageError: Ports in use, GPUs that cannot be shared equally, or a log folder that cannot be written.
    """
    host = Host.here()
    gpus = share_gpus(host.gpus, options.workers, workers_option="-n", cpu_option=f'{GPU_VARIABLE}="" tfmp launch …')
    if options.log_dir is not None:
        _make_log_dir(options.log_dir)
    if crowded := oversubscribed(host.cores, options.workers):
        eprint(f"warning: {crowded}")
    with ExitStack() as stack:
        stack.enter_context(lasting_output())
        logs = options.log_dir or stack.enter_context(temporary_folder())
        inbox = stack.enter_context(SignalInbox(STOP_SIGNALS))
        group = stack.enter_context(
            ForkServerGroup(
                partial(ForkServer.start, (), private_network="off"),
                inbox,
                StopPolicy(grace_period_s=options.grace_period_s),
            )
        )
        policy = RestartPolicy(options.max_restarts, ports_are_free=options.base_port is None)
        workload = ProgramWorkload(command, options, host, gpus, logs)
        return Controller(group, workload, policy, ProgramReporter(options)).run()


def _make_log_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = f"the folder for logs cannot be written: {error.strerror}"
        raise UsageError(what, where=f"--log-dir {folder}", hint="choose another --log-dir") from error


class ProgramWorkload(Workload):
    """Copies of a program.

    Args:
        command: The program and its arguments.
        options: The command line's.
        host: This machine.
        gpus: Each copy's GPUs, by rank.
        logs: Folder of the copies' logs.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        options: LaunchOptions,
        host: Host,
        gpus: tuple[tuple[str, ...], ...],
        logs: Path,
    ) -> None:
        self._command = command
        self._options = options
        self._host = host
        self._gpus = gpus
        self._logs = logs
        # The same in every attempt. TensorFlow takes seeds of 31 bits.
        self._seed = host.environ.get(_SEED_VARIABLE) or str(secrets.randbelow(2**31))
        self._number = -1

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """See :class:`tfmp.agent.controller.Workload`."""
        self._number += 1
        options = self._options
        with hold_ports(options.workers + 1, options.base_port, _HOST) as ports:
            specs = _specs(self._command, options, self._host, self._gpus, ports.ports, self._logs, self._number)
            specs = [replace(spec, env={**spec.env, _SEED_VARIABLE: self._seed}) for spec in specs]
            yield Attempt(self._number, specs, Watch(tuple(range(options.workers))), noop)


class ProgramReporter(Reporter):
    """Shows what the copies of a program print, and how they end.

    Args:
        options: The command line's.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options

    def on_line(self, line: Line) -> None:
        """Print a line of the workers that are to be shown."""
        options = self._options
        if not options.quiet and (options.log_workers is None or line.rank in options.log_workers):
            stream = sys.stderr if line.stream == "stderr" else sys.stdout
            print(f"[worker {line.rank}] {line.text}", file=stream, flush=True)

    def restarting(self, diagnosis: Diagnosis, restart: Restart, from_step: int) -> None:
        """Say who failed and when all start again."""
        self._explain(diagnosis)
        eprint(f"restarting in {seconds(restart.delay_s)}: restart {restart.number} of {restart.allowed}")

    def failed(self, diagnosis: Diagnosis, why: str | None) -> int:
        """Say who failed and why all is over."""
        self._explain(diagnosis)
        if why:
            eprint(f"  {why}")
        culprit = diagnosis.culprit
        return culprit.exit.shell_code if culprit else diagnosis.result.exit_code

    def _explain(self, diagnosis: Diagnosis) -> None:
        culprit = diagnosis.culprit
        if culprit is None:
            eprint(f"error: {diagnosis.short()}")
            return
        logs = self._options.log_dir
        what = f"worker {culprit.rank} failed first: {culprit.exit.describe()}"
        eprint(TfmpError(what, where=str(logs) if logs else None, hint=diagnosis.hint).render())
        for line in diagnosis.details:
            eprint(f"  {line}")
        if culprit.tail:
            eprint(f"  last lines of worker {culprit.rank}:")
            eprint("\n".join(f"  | {line}" for line in culprit.tail))
        if diagnosis.taken_along:
            eprint(diagnosis.taken_along)


def _specs(
    command: tuple[str, ...],
    options: LaunchOptions,
    host: Host,
    gpus: tuple[tuple[str, ...], ...],
    held_ports: tuple[int, ...],
    logs: Path,
    attempt: int,
) -> list[WorkerSpec]:
    *ports, master_port = held_ports
    workers = options.workers
    cluster = ClusterSpec.local(_HOST, ports)
    shared_env = thread_env(host.cores, workers, host.environ) | no_proxy_env(host.environ, [_HOST])
    pins = host.cpu_sets(workers)
    specs = []
    for rank in range(workers):
        env = {
            **shared_env,
            "TF_CONFIG": make_tf_config(cluster, "worker", rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(workers),
            "MASTER_ADDR": _HOST,
            "MASTER_PORT": str(master_port),
            "TFMP_ATTEMPT": str(attempt),
            "PYTHONUNBUFFERED": host.environ.get("PYTHONUNBUFFERED", "1"),
        }
        if gpus[rank]:
            env[GPU_VARIABLE] = ",".join(gpus[rank])
        log_path = logs / f"attempt-{attempt}" / f"worker-{rank}.log"
        specs.append(WorkerSpec(rank=rank, env=env, argv=command, log_path=log_path, cpus=pins[rank]))
    return specs
