"""``tfmp launch``: anyone's program, N times, as one supervised cluster on this machine."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tfmp.agent.controller import wait_or_signal
from tfmp.agent.failures.diagnosis import Evidence, judge
from tfmp.agent.failures.hints import known_hint
from tfmp.agent.failures.memory import MemoryWatch
from tfmp.agent.failures.report import Findings, ended_silently, other_workers, short, signal_hint
from tfmp.agent.restart_policy import Failure, RestartPolicy, Restarts, Stop
from tfmp.cluster.spec import ClusterSpec
from tfmp.cluster.tf_config import make_tf_config
from tfmp.errors import EXIT_OK, TfmpError
from tfmp.planning.environment import no_proxy_env, thread_env
from tfmp.planning.host import GPU_VARIABLE, Host, oversubscribed, share_gpus
from tfmp.report.output import lasting_output
from tfmp.rundir.temporary import temporary_folder
from tfmp.text import eprint, seconds
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import GroupControl, OnLine, run_group
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.ports import hold_ports
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, WorkerSpec, signal_name

_HOST = "127.0.0.1"


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
    its share of threads and GPUs, and proxy exceptions for the cluster.

    Raises:
        UsageError: Ports in use, or GPUs that cannot be shared equally.
    """
    host = Host.here()
    gpus = share_gpus(host.gpus, options.workers, workers_option="-n", cpu_option=f'{GPU_VARIABLE}="" tfmp launch …')
    if crowded := oversubscribed(host.cores, options.workers):
        eprint(f"warning: {crowded}")
    restarts = Restarts(RestartPolicy(options.max_restarts, ports_are_free=options.base_port is None))
    with ExitStack() as stack:
        stack.enter_context(lasting_output())
        logs = options.log_dir or stack.enter_context(temporary_folder())
        inbox = stack.enter_context(SignalInbox(STOP_SIGNALS))
        fork_server = stack.enter_context(ForkServer.start((), private_network="off"))
        attempt = 0
        while True:
            began_s = time.monotonic()
            memory = MemoryWatch(time.monotonic)

            def on_tick(control: GroupControl, memory: MemoryWatch = memory) -> None:
                memory.look(control.pids)

            with hold_ports(options.workers + 1, options.base_port, _HOST) as held:
                result = run_group(
                    fork_server,
                    _specs(command, options, host, gpus, held.ports, logs, attempt),
                    on_line=None if options.quiet else _printer(options.log_workers),
                    on_tick=on_tick,
                    grace_period_s=options.grace_period_s,
                    inbox=inbox,
                )
            if result.exit_code == EXIT_OK or result.stopped_by is not None:
                return _ended(result)
            findings = _judge(result, memory)
            # Of a program nothing is known of its steps: each attempt counts as one that began to work.
            verdict = findings.verdict
            failure = Failure(verdict.cause, 0, verdict.signature, time.monotonic() - began_s)
            decision = restarts.after(failure)
            code = _report(findings, logs if options.log_dir else None)
            if isinstance(decision, Stop) or result.signalled is not None or result.fork_server_lost:
                if isinstance(decision, Stop) and decision.why:
                    eprint(f"  {decision.why}")
                return code
            attempt += 1
            eprint(f"restarting in {seconds(decision.delay_s)}: restart {decision.number} of {decision.allowed}")
            if (signum := wait_or_signal(decision.delay_s, inbox)) is not None:
                eprint(f"interrupted by {signal_name(signum)}")
                return 128 + signum


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


def _printer(ranks: frozenset[int] | None) -> OnLine:
    """A function that prints the lines of these workers; ``None``: of all."""

    def on_line(rank: int, stream: str, text: str) -> None:
        if ranks is None or rank in ranks:
            print(f"[worker {rank}] {text}", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    return on_line


def _judge(result: GroupResult, memory: MemoryWatch) -> Findings:
    verdict = judge([Evidence(one, tail=result.tail(one.rank), step=0) for one in result.exits], result)
    culprit = verdict.culprit
    memory_evidence = memory.memory_evidence(culprit.rank) if culprit and ended_silently(culprit) else None
    return Findings(result, verdict, memory_evidence)


def _ended(result: GroupResult) -> int:
    if result.stopped_by is not None:
        eprint(f"interrupted by {signal_name(result.stopped_by)}")
    return result.exit_code


def _report(findings: Findings, logs: Path | None) -> int:
    """Say on standard error how a group that did not end well ended; return the exit code."""
    culprit = findings.verdict.culprit
    if culprit is None:
        eprint(f"error: {short(findings)}")
        return findings.result.exit_code
    first = culprit.exit
    eprint(
        TfmpError(
            f"worker {first.rank} failed first: {first.describe()}",
            where=str(logs) if logs else None,
            hint=signal_hint(first.signal) or known_hint(culprit.tail),
        ).render()
    )
    for line in findings.details:
        eprint(f"  {line}")
    if culprit.tail:
        eprint(f"  last lines of worker {first.rank}:")
        eprint("\n".join(f"  | {line}" for line in culprit.tail))
    if others := other_workers(findings.result, findings.verdict):
        eprint(others)
    return first.shell_code
