"""What ``--drill`` takes."""

from __future__ import annotations

import pytest

from tfmp.errors import UsageError
from tfmp.jobs.drill import Drill, parse_drill


@pytest.mark.parametrize(
    ("text", "drill"),
    [
        ("kill:2@step=50", Drill("kill", 2, step=50)),
        ("stop", Drill("stop", 2)),
        ("stop:0@at=validation", Drill("stop", 0, moment="validation")),
        ("slow:3x@rank=1", Drill("slow", 1, value=3.0)),
        ("oom", Drill("oom", 2)),
        ("exit:7@rank=0,step=9", Drill("exit", 0, value=7, step=9)),
        ("corrupt-checkpoint@step=30", Drill("corrupt-checkpoint", 0, step=30)),
        ("disk-full", Drill("disk-full", 0, moment="saving")),
        ("term:1@at=start", Drill("term", 1, moment="start")),
    ],
)
def test_drills(text: str, drill: Drill) -> None:
    assert parse_drill(text, 3) == drill


@pytest.mark.parametrize(
    "text",
    ["", "burn", "kill:x", "kill:3", "exit:-1", "slow:3", "oom:1", "kill@", "kill@at=noon", "kill@step=x", "kill@x"],
)
def test_others_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="kill:2@step=50"):
        parse_drill(text, 3)
