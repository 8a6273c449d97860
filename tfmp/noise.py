"""Recognizes lines of TensorFlow that mean nothing; the log files keep them."""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    "|".join(
        (
            r"^WARNING: All log messages before absl::InitializeLog\(\)",
            r"^[IW]\d{4} \d\d:\d\d:\d\d",  # informational and warning lines of TensorFlow's C++ log, short form
            r"^[IW]0000 00:00:\d+",
            r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] ",  # the same, long form
            r"^E\d{4} .*failed call to cuInit",  # a GPU build of TensorFlow on a machine without a GPU
            r"^To enable the following instructions: .* rebuild TensorFlow",
        )
    )
)


#: What a worker prints first when it has lost a peer. Pages follow, none of which is about itself.
_LOST_A_PEER = re.compile(r"Aborting RingReduce|CollectiveExecutor::StartAbort|Collective ops is aborted by")


def complains_of_a_peer(text: str) -> bool:
    """Whether a line starts what TensorFlow prints when another worker is gone."""
    return _LOST_A_PEER.search(text) is not None


def is_noise(text: str) -> bool:
    """Whether a line is one of TensorFlow's informational messages."""
    return _HARMLESS.match(text) is not None
