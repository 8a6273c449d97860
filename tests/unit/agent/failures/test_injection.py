"""What ``--inject-fault`` takes."""

from __future__ import annotations

import pytest

from tfmp.agent.failures.injection import Fault, parse_fault
from tfmp.errors import UsageError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:2@step=50", Fault("kill", 2, step=50)),
        ("stop", Fault("stop", 2)),
        ("stop:0@at=validation", Fault("stop", 0, moment="validation")),
        ("slow:3x@rank=1", Fault("slow", 1, value=3.0)),
        ("oom", Fault("oom", 2)),
        ("exit:7@rank=0,step=9", Fault("exit", 0, value=7, step=9)),
        ("corrupt-checkpoint@step=30", Fault("corrupt-checkpoint", 0, step=30)),
        ("disk-full", Fault("disk-full", 0, moment="saving")),
        ("term:1@at=start", Fault("term", 1, moment="start")),
    ],
)
def test_faults(text: str, fault: Fault) -> None:
    assert parse_fault(text, 3) == fault


@pytest.mark.parametrize(
    "text",
    ["", "burn", "kill:x", "kill:3", "exit:-1", "slow:3", "oom:1", "kill@", "kill@at=noon", "kill@step=x", "kill@x"],
)
def test_others_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="kill:2@step=50"):
        parse_fault(text, 3)
