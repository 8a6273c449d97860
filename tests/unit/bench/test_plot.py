"""The figures as a picture; one is drawn in tests/cluster/test_commands.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.bench.support import PLAN, everything
from tfmp.bench.analysis import analyse
from tfmp.bench.plot import save_plot
from tfmp.errors import TfmpError


def test_without_matplotlib_the_way_to_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TfmpError, match=r"no plot: matplotlib is not installed[^']*pip install 'tfmp\[plot\]'"):
        save_plot(tmp_path / "bench.png", PLAN, analyse(PLAN, everything(), 0.975))
    assert not list(tmp_path.iterdir())
