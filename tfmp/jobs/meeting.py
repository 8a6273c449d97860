"""Where the workers of one host meet to share memory: a private folder and a secret, for one attempt of one run."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfmp.cluster.plan import Plan


def meeting_place(plan: Plan, scratch: Path) -> dict[str, str] | None:
    """Make the place in the attempt's temporary folder, or nothing where the plan's collective needs none.

    Returns:
        ``directory`` (mode 0700) and ``token`` (hex), as :class:`tfmp.train.worker.WorkerTask` takes them.
    """
    if plan.collective.name != "shm":
        return None
    directory = scratch / "meeting"
    directory.mkdir(mode=0o700)
    return {"directory": str(directory), "token": secrets.token_hex(16)}
