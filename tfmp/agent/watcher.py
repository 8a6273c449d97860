"""What the workers of one attempt do, shown and recorded as it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfmp.agent.console import Console
from tfmp.agent.monitor import Attempt
from tfmp.agent.options import TrainOptions
from tfmp.report.view import make_view
from tfmp.rundir.recorder import Recorder
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_server import NOT_ASKED
from tfmp.workers.group import GroupControl

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan

OnEvent = Callable[[int, dict[str, Any]], None]
OnTick = Callable[[GroupControl], None]


class Watcher:
    """Takes the events and lines of one attempt's local workers.

    Args:
        plan: The run.
        recorder: Takes the events.
        attempt: Takes them as evidence.
        options: What is to be shown.
        private_network: ``cluster.private_network``.

    Attributes:
        last_steps: By rank, the last epoch and step that a worker told.
        hidden_lines: Harmless lines of TensorFlow that were not shown.
    """

    def __init__(
        self, plan: Plan, recorder: Recorder, attempt: Attempt, options: TrainOptions, private_network: str
    ) -> None:
        self.last_steps: dict[int, Any] = {}
        self._plan = plan
        self._recorder = recorder
        self._attempt = attempt
        self._tee = options.tee
        self._private_network = private_network
        self._local = [worker for worker in plan.workers if worker.local]
        self._view = make_view(
            live=options.live,
            epochs=plan.epochs,
            steps_per_epoch=plan.batch.steps_per_epoch,
            workers=len(self._local),
            verbosity=options.verbosity,
        )
        self._console = Console(
            self._show,
            recorder.leaving,
            everything=options.verbosity > 0,
            tee=options.tee,
            ranks=options.log_workers,
        )
        self.say = self._view.say
        self.tick = self._view.tick
        self.close = self._view.close
        self.on_line = self._console.on_line

    @property
    def hidden_lines(self) -> int:
        """See the class."""
        return self._console.hidden

    def on_event(self, rank: int, event: dict[str, Any], on_ready: Callable[[], None] | None) -> None:
        """Take one event; ``on_ready`` is called when it makes all workers ready."""
        kind = event.get("event")
        self._recorder.on_event(rank, event)
        self._console.on_event(rank, event)
        self._attempt.on_event(rank, event)
        if kind == "progress":
            self.last_steps[rank] = {"epoch": event["epoch"], "step": event["step"]}
        if kind == "checkpoint_failed":
            step, reason = event["global_step"], event["reason"]
            self.say(f"warning: no checkpoint at step {step:,}: {reason}; training goes on")
        if kind == "ready" and len(self._recorder.ready) == len(self._local) and on_ready is not None:
            on_ready()
        # Logs are equal on all workers: where rank 0 is elsewhere, another tells of the same progress.
        self._view.on_event(rank - self._local[0].rank, event)

    def note_fork_server(self, fork_server: ForkServer) -> bool:
        """Record the fork server, and say why the workers' network is not private; return whether it is up."""
        ready = fork_server.ready
        if ready is None:
            return False
        self._recorder.note("fork_server_ready", import_s=ready.import_s, private_network=ready.private_network)
        # Workers of several hosts have no private network to miss.
        here = len(self._local) == len(self._plan.workers)
        if ready.network_note and self._plan.layout.is_multi_process and here:
            wanted = self._private_network
            reason = "the run has code of your own, which may need the network" if wanted == "auto" else "as asked"
            if ready.network_note != NOT_ASKED:
                reason = ready.network_note
            self.say(f"note: the workers' network is not private: {reason} (cluster.private_network)")
        return True

    def _show(self, rank: int, stream: str, text: str) -> None:
        if self._tee:
            self.say(f"[worker {rank}] {text}")
        else:
            self._view.on_line(rank, stream, text)
