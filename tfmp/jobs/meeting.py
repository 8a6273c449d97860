"""Where the workers of one host meet to share memory: a private folder and a secret, for one attempt of one run."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfmp.cluster.plan import Plan


@contextmanager
def meeting_place(plan: Plan) -> Iterator[dict[str, str] | None]:
    """Make the place, or nothing where the plan's collective needs none.

    Yields:
        ``directory`` (mode 0700) and ``token`` (hex), as :class:`tfmp.train.worker.WorkerTask` takes them.
    """
    if plan.collective.name != "shm":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tfmp-") as directory:
        yield {"directory": directory, "token": secrets.token_hex(16)}
