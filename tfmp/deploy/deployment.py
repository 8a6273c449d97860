"""What is deployed, whichever kind of file it becomes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tfmp import __version__

DEFAULT_IMAGE = f"tfmp:{__version__}"
DEFAULT_CPUS = 1
DEFAULT_MEMORY_GIB = 2.0
#: On top of the workers' grace period, so that the container ends after them.
_EXTRA_GRACE_S = 5
#: Kubernetes allows 63 characters, some of which it adds itself.
_MAX_NAME = 40


@dataclass(frozen=True)
class DataFile:
    """A file of samples that the configuration names.

    Attributes:
        key: Its key, such as ``data.path``.
        path: Its absolute path.
    """

    key: str
    path: str


@dataclass(frozen=True)
class Deployment:
    """One training to deploy.

    Attributes:
        name: The run's name.
        workers: Number of workers.
        made_by: The command that generates the file.
        config: Path of the configuration as written in the file; ``None``: the defaults.
        config_text: Its content.
        sets: ``KEY=VALUE`` texts for ``--set``.
        data: Files of samples.
        own_code: ``package.module:function`` references that the workers must be able to import.
        run_dir: ``run.dir``; ``None`` if the configuration does not set it.
        cpus: CPUs of each worker.
        memory_gib: Memory of each worker.
        max_restarts: How many times the whole group restarts after a failure.
        grace_period_s: ``run.grace_period_s``.
        image: Name of the image.
        build: Directory to build it from, as written in the file; ``None``: it exists.
    """

    name: str
    workers: int
    made_by: str
    config: str | None = None
    config_text: str | None = None
    sets: tuple[str, ...] = ()
    data: tuple[DataFile, ...] = ()
    own_code: tuple[str, ...] = ()
    run_dir: str | None = None
    cpus: int = DEFAULT_CPUS
    memory_gib: float = DEFAULT_MEMORY_GIB
    max_restarts: int = 3
    grace_period_s: float = 10.0
    image: str = DEFAULT_IMAGE
    build: str | None = None

    @property
    def label(self) -> str:
        """The name as Kubernetes and host names allow it: lowercase letters, digits and hyphens."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower())[:_MAX_NAME].strip("-")
        return f"tfmp-{plain}" if plain else "tfmp"

    @property
    def folder_name(self) -> str:
        """The name as part of a path."""
        return re.sub(r"[^\w.-]+", "-", self.name, flags=re.ASCII).strip(".-") or "run"

    @property
    def stop_s(self) -> int:
        """Seconds from the request to stop to SIGKILL."""
        return math.ceil(self.grace_period_s) + _EXTRA_GRACE_S

    @property
    def memory_mib(self) -> int:
        """Memory of each worker."""
        return math.ceil(self.memory_gib * 1024)

    @property
    def set_words(self) -> list[str]:
        """The ``--set`` options."""
        return [word for text in self.sets for word in ("--set", text)]
