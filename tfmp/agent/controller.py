"""A run on this machine from its first attempt to its last: failed groups start again, where the cause allows it."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfmp.agent import resume
from tfmp.agent.failures.report import Findings, short
from tfmp.agent.restart_policy import Failure, Restart, RestartPolicy, Restarts
from tfmp.agent.run import Run
from tfmp.errors import EXIT_OK
from tfmp.text import count, eprint, seconds
from tfmp.workers.signals import SignalInbox

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan
    from tfmp.rundir.layout import RunFolder
    from tfmp.workers.fork_client import ForkServer
    from tfmp.workers.ports import HeldPorts
    from tfmp.workers.spec import GroupResult

Say = Callable[[str], None]


@dataclass(frozen=True)
class Means:
    """What an attempt needs anew.

    Attributes:
        hold_ports: Holds ports for the workers; gives ``None`` where they need none.
        plan: The plan with these ports.
        start_fork_server: Starts a fork server.
    """

    hold_ports: Callable[[], AbstractContextManager[HeldPorts | None]]
    plan: Callable[[HeldPorts | None], Plan]
    start_fork_server: Callable[[], ForkServer]


class Attempts:
    """Runs a group, and runs it again.

    Args:
        run: The run.
        folder: Its folder.
        means: For further attempts.
        policy: When to give up.
        inbox: This process's stop signals: they end the waits between attempts too.
        tell: Says a line to the user.
    """

    def __init__(
        self, run: Run, folder: RunFolder, means: Means, policy: RestartPolicy, inbox: SignalInbox, tell: Say
    ) -> None:
        self._run = run
        self._folder = folder
        self._means = means
        self._policy = policy
        self._restarts = Restarts(policy)
        self._inbox = inbox
        self._tell = tell
        self._made = 1
        self._point: resume.ResumePoint | None = None

    def run(self, ports: HeldPorts | None, helper: ForkServer) -> int:
        """Run attempt after attempt, until one ends well, the user stops it, or the next would fail too.

        Args:
            ports: Of the first attempt.
            helper: Its fork server; closed at the end, like its successors.

        Returns:
            The exit code.
        """
        try:
            workers = count(self._run.worker_count, "worker")
            result = self._watch(helper, ports, f"starting: importing TensorFlow, then {workers}")
            while True:
                self._folder.remove_temporaries()
                decision = self._decide(result)
                if isinstance(decision, int):
                    return decision
                if (signum := wait_or_signal(decision.delay_s, self._inbox)) is not None:
                    return self._run.interrupted(signum)
                if result.fork_server_lost:
                    helper.close()
                    helper = self._means.start_fork_server()
                with self._means.hold_ports() as ports:
                    self._run.recorder.restarts += 1
                    self._run.resume_from(self._point, self._means.plan(ports))
                    result = self._watch(helper, ports, f"starting {workers} again")
        finally:
            helper.close()

    def _watch(self, helper: ForkServer, ports: HeldPorts | None, announce: str) -> GroupResult:
        # Every worker has its own port once it is ready.
        release = ports.release if ports else None
        return self._run.watch(helper, announce=announce, on_ready=release, inbox=self._inbox)

    def _decide(self, result: GroupResult) -> Restart | int:
        """How to go on after an attempt, or the exit code."""
        run = self._run
        if result.exit_code == EXIT_OK or result.stopped_by is not None:
            return run.finish(result)
        findings = run.findings(result)
        if result.signalled is not None:
            # A scheduler that ends a job signals all its processes: a worker may have left before this one was told.
            if findings.verdict.cause == "preempted":
                run.note_exits(result)
                return run.interrupted(result.signalled)
            return run.finish(result)
        self._folder.require()  # what is to go on there
        verdict = findings.verdict
        failure = Failure(verdict.cause, verdict.step, verdict.signature, run.attempt.ran_s)
        decision = self._restarts.after(failure)
        if isinstance(decision, Restart):
            run.note_exits(result)
            self._announce(findings, decision)
            return decision
        code = run.finish(result)
        if decision.why:
            eprint(f"  {decision.why}")
        return code

    def _announce(self, findings: Findings, restart: Restart) -> None:
        """Say why, from where, and what is lost."""
        verdict = findings.verdict
        # No worker is alive, so that this is still the newest one when they start again.
        self._point = resume.choose(self._folder, self._tell)
        from_step = self._point.header.global_step if self._point else 0
        lost = max(0, (verdict.step or from_step) - from_step)
        self._made += 1
        attempts = self._made + restart.allowed - restart.number
        wait = f" in {seconds(restart.delay_s)}" if restart.delay_s else ""
        eprint(
            f"{short(findings)}\n"
            f"restarting{wait}: attempt {self._made} of {attempts}, restart {restart.number} of {restart.allowed}, "
            f"from step {from_step:,}, lost {count(lost, 'step')}"
        )
        facts = {"cause": verdict.cause, "what": short(findings), "culprits": list(verdict.culprits)}
        memory_evidence = findings.memory_evidence.to_json() if findings.memory_evidence else None
        hang = findings.hang_report.to_json() if findings.hang_report else None
        self._run.recorder.note(
            "restart", attempt=self._made, from_step=from_step, lost_steps=lost, **facts,
            memory_evidence=memory_evidence, hang=hang,
        )  # fmt: skip


def wait_or_signal(delay_s: float, inbox: SignalInbox) -> int | None:
    """Wait, unless a stop signal comes: then return it."""
    deadline_s = time.monotonic() + delay_s
    with selectors.DefaultSelector() as selector:
        selector.register(inbox, selectors.EVENT_READ)
        while True:
            for signum in inbox.read():
                return signum
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return None
            selector.select(left_s)
