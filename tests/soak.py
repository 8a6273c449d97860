"""The soak: one run for each kind and moment of fault, each to end as if nothing had happened. ``make soak``.

Prints a table: exit code, restarts, whom the verdict named, seconds, whether the weights are those of the undisturbed
run, and what was left behind (processes, ports, shared memory, temporary files). Ends with 1 if any line is not as it
should be.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.launch_support import alive_with
from tests.conftest import run_program
from tfmp.agent.failures.injection import parse_fault

_STEPS = 10
_SHARED = Path("/dev/shm")
_WORKERS = 3
_RUN = ("--workers", _WORKERS, "--epochs", 2, "--batch-size", 100, "--set", f"data.limit_train={100 * _STEPS}",
        "--set", "data.limit_validation=500", "--set", "training.validation_batch_size=100",
        "--set", "training.steps_per_execution=2", "--set", "model.dropout=0.2", "--set", "run.tensorboard=false",
        "--set", "run.checkpoint_every_s=0.000001")  # fmt: skip
_LAST = 2 * _STEPS

FAULTS = (
    "kill:1@at=start", "kill:0@at=start", "kill:0@step=2", "kill:2@step=2", "kill:1@step=14", "kill:0@step=14",
    "kill:2@step=10,at=validation", "kill:0@step=10,at=validation", "kill:0@step=6,at=saving",
    f"kill:1@step={_LAST}", f"kill:0@step={_LAST}",
    "stop:2@at=start", "stop:0@step=2", "stop:1@step=14", "stop:0@step=14", "stop:1@step=10,at=validation",
    "stop:0@step=6,at=saving", f"stop:2@step={_LAST}",
    # No exit at the start: what fails before the first step is not tried again.
    "exit:7@rank=2,step=2", "exit:7@rank=1,step=14", "exit:7@rank=0,step=14", "exit:7@rank=2,step=10,at=validation",
    "exit:7@rank=0,step=6,at=saving", f"exit:7@rank=1,step={_LAST}",
    "term:1@at=start", "term:0@step=2", "term:1@step=14", "term:0@step=4", "term:2@step=10,at=validation",
    "term:0@step=6,at=saving", f"term:1@step={_LAST}",
    "corrupt-checkpoint@step=2", "corrupt-checkpoint@step=14", f"corrupt-checkpoint@step={_LAST}",
    "disk-full@step=2", "disk-full@step=4", f"disk-full@step={_LAST}",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How one fault ended."""

    fault: str
    code: int
    restarts: int
    named: tuple[int, ...]
    seconds: float
    digest: str | None
    left: tuple[str, ...]

    def line(self, expected: str) -> tuple[str, bool]:
        """A line of the table, and whether it is as it should be."""
        same = self.digest == expected
        culprits = () if self.fault.startswith("disk-full") else (parse_fault(self.fault, _WORKERS).rank,)
        as_wanted = (self.restarts, self.named) == (len(culprits), culprits)
        good = self.code == 0 and same and not self.left and as_wanted
        left = "; ".join(self.left) or "nothing"
        words = (f"{self.fault:<34}", f"{self.code:>4}", f"{self.restarts:>8}",
                 f"{','.join(map(str, self.named)):>5}", f"{self.seconds:>7.1f}")  # fmt: skip
        return f"{' '.join(words)}  {'same' if same else 'OTHER':<7} {left}{'' if good else '   <--'}", good


def _mapped(path: Path) -> bool:
    """Whether a living process uses it: then it is somebody else's, as all of the run have ended."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if f"{path}\n" in maps.read_text(errors="replace"):
                return True
    return False


def leftovers(folder: Path, shared_before: set[Path]) -> Iterator[str]:
    """What a run should not have left."""
    for pid, command in alive_with(f"TFMP_SOAK={folder}").items():
        yield f"process {pid} {command[:40]}"
    for path in set(_SHARED.iterdir()) - shared_before:
        if path.exists() and not _mapped(path):
            yield str(path)
    for path in (*folder.rglob("*.tmp*"), *_temporary(folder).iterdir()):
        yield str(path.relative_to(folder.parent))
    for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", (folder / "events.jsonl").read_text()))):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", int(port)))
            except OSError:
                yield f"port {port}"


def _temporary(folder: Path) -> Path:
    """The run's own TMPDIR, beside its folder."""
    return folder.with_name(f"tmp-{folder.name}")


def run(folder: Path, fault: str | None) -> Outcome:
    """Train with a fault, or without."""
    shared_before = set(_SHARED.iterdir())
    arguments = ("--inject-fault", fault) if fault else ()
    _temporary(folder).mkdir()
    env = {"TFMP_SOAK": str(folder), "TMPDIR": str(_temporary(folder))}
    done = run_program("train", *_RUN, *arguments, "--run-dir", folder, env=env)
    summary = json.loads((folder / "summary.json").read_text())
    left = tuple(leftovers(folder, shared_before))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    named = tuple(rank for event in events if event["event"] == "restart" for rank in event["culprits"])
    return Outcome(
        fault or "none", done.code, summary["restarts"], named, done.seconds, summary["weights_sha256"], left
    )


def main() -> int:
    """Run the faults named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=FAULTS)
    faults = parser.parse_args().faults
    bad = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        expected = run(Path(temporary) / "none", None)
        print(f"{'fault':<34} exit restarts named seconds  weights left", flush=True)
        print(
            f"{'none':<34} {expected.code:>4} {0:>8} {'':>5} {expected.seconds:>7.1f}  {(expected.digest or '')[:7]}",
            flush=True,
        )
        for i, fault in enumerate(faults):
            text, good = run(Path(temporary) / str(i), fault).line(expected.digest or "")
            bad += not good
            print(text, flush=True)
    print(f"{len(faults) - bad} of {len(faults)} faults ended as if nothing had happened")
    return 1 if bad or expected.code else 0


if __name__ == "__main__":
    sys.exit(main())
