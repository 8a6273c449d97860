"""Runs ``tfmp train`` for a benchmark: ``python -m tfmp.bench.child PARENT CPUS ARGUMENT…``.

The process ends with the benchmark, however that ends, and stays on the given CPUs (``0,1``; ``-`` for any). Both must
be set up from inside before anything starts, and both survive the ``exec``.
"""

from __future__ import annotations

import os
import signal
import sys

from tfmp.errors import EXIT_TERMINATED
from tfmp.workers.linux import set_parent_death_signal


def main() -> None:
    """Set up both and become ``tfmp ARGUMENT…``."""
    parent, cpus, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:  # it has already ended
        sys.exit(EXIT_TERMINATED)
    if cpus != "-":
        os.sched_setaffinity(0, set(map(int, cpus.split(","))))
    os.execv(sys.executable, [sys.executable, "-m", "tfmp", *arguments])


if __name__ == "__main__":
    main()
