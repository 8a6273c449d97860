"""All programs at 2 and 3 workers and on 2 devices: equal to plain Keras, or refused by name, or listed here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.expected import DIFFERS, REFUSED
from tests.models.outcomes import MODES, Outcome, compare, run
from tests.models.programs import PROGRAMS

Ran = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What the programs left in a mode; each mode is run once."""
    folder: Path = tmp_path_factory.mktemp("programs")
    found: dict[str, dict[str, Any]] = {}

    def results(title: str) -> dict[str, Any]:
        if title not in found:
            mode, workers = MODES.get(title, ("plain", 0))
            found[title] = run(mode, workers, folder / title.replace(" ", "-"))
        return found[title]

    return results


@pytest.mark.timeout(900)
@pytest.mark.parametrize("title", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, title: str, ran: Ran) -> None:
    outcome: Outcome = compare(ran("plain")[name], ran(title)[name])
    if name in REFUSED:
        assert outcome.error is not None
        assert outcome.error.startswith("TfmpError: error: " + REFUSED[name]), outcome.error
    elif name in DIFFERS:
        assert outcome.error is None, outcome.error
        assert 1e-8 < outcome.difference <= DIFFERS[name]
    else:
        assert outcome.error is None, outcome.error
        assert outcome.is_equal, outcome.describe()
