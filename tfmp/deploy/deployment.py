"""What a deployment file is made of, whichever kind it is."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tfmp import __version__

#: Of each worker; hosts are its own, so one number serves all.
PORT = 2222
#: The image's user, and where it keeps runs (see docker/Dockerfile).
USER_ID = 10001
RUNS = "/runs"
CONFIG = "/config.yaml"
DEFAULT_IMAGE = f"tfmp:{__version__}"
DEFAULT_CPUS = 1
DEFAULT_MEMORY_GIB = 2.0
#: More than workers get to end, for the container to end after them.
_EXTRA_GRACE_S = 5
#: Of names in Kubernetes (63), less what is added to them.
_MAX_NAME = 40


@dataclass(frozen=True)
class DataFile:
    """A file of samples that the configuration names.

    Attributes:
        key: Its key, such as ``data.path``.
        path: Where it lies, absolute.
    """

    key: str
    path: str


@dataclass(frozen=True)
class Deployment:
    """One training to deploy.

    Attributes:
        name: The run's name.
        workers: Number of workers.
        made_by: The command that makes the file.
        config: Path of the configuration as the file is to name it; ``None``: the defaults.
        config_text: Its content.
        sets: ``KEY=VALUE`` texts for ``--set``.
        data: Files of samples.
        own_code: ``package.module:function`` references that the workers must be able to import.
        run_dir: ``run.dir``; ``None`` where the configuration does not say.
        cpus: CPUs of each worker.
        memory_gib: Memory of each worker.
        max_restarts: How often the whole group starts again after a failure.
        grace_period_s: ``run.grace_period_s``.
        image: Name of the image.
        build: Folder to build it from, as the file is to name it; ``None``: it exists.
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
        """The name as Kubernetes and host names allow it: lower case letters, digits and hyphens."""
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

    @property
    def code_lines(self) -> list[str]:
        """What the heading says of the user's own code."""
        if not self.own_code:
            return []
        return [f"Your own code must be importable there: {', '.join(self.own_code)}."]


def quoted(text: str) -> str:
    """Return a text as a YAML scalar in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def heading(lines: Sequence[str]) -> list[str]:
    """Return lines as comments."""
    return [f"# {line}".rstrip() for line in lines]


def shell_words(words: Sequence[str]) -> str:
    """Return words as a shell reads them; ``$`` of a variable of the script stays one in double quotes."""
    return " ".join(f'"{word}"' if "$SLURM" in word else shlex.quote(word) for word in words)
