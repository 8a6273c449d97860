"""Which lines of TensorFlow are noise."""

from __future__ import annotations

import pytest

from tfmp.noise import is_noise


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        ("I0000 00:00:1796017365.918627    3799 port.cc:153] oneDNN custom operations are on.", True),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", True),
        ("2026-11-30 06:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN", True),
        ("E0000 00:00:1796017365.918627    3799 x.cc:1] failed", False),
        ("Traceback (most recent call last):", False),
        ("I think this is mine", False),
    ],
)
def test_only_tensorflows_informational_lines_are_noise(line: str, noise: bool) -> None:
    assert is_noise(line) is noise
