"""Lines that TensorFlow prints without anything being wrong; the log files keep them."""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    "|".join(
        (
            r"^WARNING: All log messages before absl::InitializeLog\(\)",
            r"^[IW]\d{4} \d\d:\d\d:\d\d",  # informational and warning lines of TensorFlow's C++ log, short form
            r"^[IW]0000 00:00:\d+",
            r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] ",  # the same, long form
            r"^To enable the following instructions: .* rebuild TensorFlow",
        )
    )
)


def is_noise(text: str) -> bool:
    """Whether a line is one of TensorFlow's informational messages."""
    return _HARMLESS.match(text) is not None
