"""Stock Keras against the bridge on a user's own multi-worker script.

The first test fails on the day when stock Keras 3 no longer needs the bridge: then the private hooks can go.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tensorflow.python.distribute import values

from tests.conftest import ROOT, run_program

_PROGRAMS = Path(__file__).parent / "programs"
_ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_stock_keras_fit_still_fails_with_two_workers() -> None:
    done = run_program("launch", "-n", 2, "--", sys.executable, _PROGRAMS / "own_script.py", env=_ENV)
    assert done.code == 1
    assert "PerReplica" in done.text, "stock Keras fails in another way, or works: see tfmp/distribute/keras_hooks.py"


def test_a_variable_of_a_strategy_still_cannot_be_turned_into_a_number() -> None:
    function = getattr(values.DistributedVariable, "__float__", None)
    needed = function is None or function.__module__.startswith("tfmp.")
    assert needed, "TensorFlow has it: remove let_variables_be_numbers from keras_hooks/optimizers.py"


def test_the_same_script_works_with_the_bridge() -> None:
    done = run_program("launch", "-n", 2, "--", sys.executable, _PROGRAMS / "own_script.py", "bridge", env=_ENV)
    assert done.code == 0, done.text
    lines = {line.split("] ", 1)[1] for line in done.out.splitlines() if "] loss " in line}
    assert len(lines) == 1, "both workers see the same losses and hold the same weights"
    first, second = map(float, lines.pop().split()[1:3])
    assert second < first < 2.0


def test_tensorflow_touched_before_the_strategy_fails_soon_and_says_so() -> None:
    done = run_program("launch", "-n", 2, "--", sys.executable, _PROGRAMS / "early_tensor.py", env=_ENV)
    assert done.code == 1
    assert "Collective ops must be configured at program startup" in done.err
    assert "create the strategy first" in done.err
    assert done.seconds < 30
