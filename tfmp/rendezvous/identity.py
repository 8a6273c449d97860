"""What a launcher tells about itself when it joins, and what two launchers disagree about.

Everything that must be equal on all workers is compared before the first step. TensorFlow compares nothing: two
workers with different cluster lists both start.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tfmp
from tfmp.ipc import NotOurs

if TYPE_CHECKING:
    from tfmp.config import RunConfig

#: Keys that each host may set as it likes: what is there differs (paths, cores), or has no effect on the numbers. The
#: content of the data is compared instead of its paths.
_HOST_OWN = frozenset(
    {
        "data.cache_dir",
        "data.path",
        "data.train_images",
        "data.train_labels",
        "data.validation_images",
        "data.validation_labels",
        "cluster.base_port",
        "cluster.heartbeat_timeout_s",
        "cluster.private_network",
        "cluster.rendezvous",
        "cluster.start_timeout_s",
        "cluster.threads_per_worker",
        "cluster.token",
        "cluster.workers",  # the cluster itself is compared
    }
)
_TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "intel-tensorflow")
_MAX_SHOWN = 200


@dataclass(frozen=True)
class Identity:
    """One launcher.

    Attributes:
        rank: Its rank.
        agreed: By name, every value that must be equal on all workers; JSON values.
        host: Its host's name, for a person.
        pid: Its process id.
        run: What tells two runs of a scheduler apart, such as ``Slurm step 12.0``; ``None`` where nothing does.
        port: TCP port of its TensorFlow server.
        place: What is equal for two launchers whose workers can share memory.
        digest: SHA-256 (hex) over ``agreed``.
    """

    rank: int
    agreed: Mapping[str, Any]
    host: str
    pid: int
    run: str | None = None
    port: int = 0
    place: str = ""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps(self.agreed, sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest())

    def to_message(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "rank": self.rank,
            "agreed": dict(self.agreed),
            "host": self.host,
            "pid": self.pid,
            "run": self.run,
            "port": self.port,
            "place": self.place,
            "digest": self.digest,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Identity:
        """Read it back.

        Raises:
            NotOurs: A value is missing or of the wrong type, or the digest is not that of the values.
        """
        rank, agreed, host = message.get("rank"), message.get("agreed"), message.get("host")
        pid, run, port = message.get("pid"), message.get("run"), message.get("port")
        place = message.get("place", "")
        if (
            type(rank) is not int
            or not isinstance(agreed, dict)
            or not isinstance(host, str)
            or type(pid) is not int
            or not isinstance(run, str | None)
            or type(port) is not int
            or not isinstance(place, str)
        ):
            raise NotOurs("a greeting without the expected values")
        run = None if run is None else printable(run)
        identity = cls(rank, agreed, printable(host), pid, run, port, place)
        if identity.digest != message.get("digest"):
            raise NotOurs("a greeting whose digest is not that of its values")
        return identity


@dataclass(frozen=True)
class Difference:
    """One value that two launchers do not agree about, as texts; ``-`` where one has none."""

    name: str
    ours: str
    theirs: str


def differences(ours: Identity, theirs: Identity) -> list[Difference]:
    """Return what two launchers do not agree about: the cluster first, then versions, then settings by name."""
    if ours.digest == theirs.digest:
        return []
    names = sorted(ours.agreed.keys() | theirs.agreed.keys(), key=lambda name: (_order(name), name))
    return [
        Difference(printable(name), _text(ours.agreed, name), _text(theirs.agreed, name))
        for name in names
        if name not in ours.agreed or name not in theirs.agreed or ours.agreed[name] != theirs.agreed[name]
    ]


def agreed_values(config: RunConfig, cluster: str, versions: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return all that must be equal on every worker.

    Args:
        config: The resolved configuration; its section ``run`` and what is each host's own are left out.
        cluster: The cluster as text.
        versions: By program, its version.
        more: Further values, such as the digest of the data.
    """
    from tfmp.config.keys import plain, schema_keys

    values: dict[str, Any] = {"cluster.workers": cluster}
    values |= {f"version of {name}": version for name, version in versions.items()}
    for key in schema_keys():
        section, _, name = key.partition(".")
        if section != "run" and key not in _HOST_OWN:
            values[key] = plain(getattr(getattr(config, section), name))
    return values | {name.replace("_", " "): value for name, value in more.items()}


def installed_versions() -> dict[str, str]:
    """Return the versions of what trains, from the installed packages' metadata: nothing is imported."""
    return {
        "tfmp": tfmp.__version__,
        "TensorFlow": _version(*_TENSORFLOW_PACKAGES),
        "Keras": _version("keras", "keras-nightly"),
        # Python's bug-fix releases compute the same.
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def _order(name: str) -> int:
    if name == "cluster.workers":
        return 0
    return 1 if name.startswith("version of ") else 2


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "-"
    value = values[name]
    return printable(value if isinstance(value, str) else json.dumps(value))


def printable(text: str, limit: int = _MAX_SHOWN, keep: str = "") -> str:
    """Return a text from another host made safe for this terminal: no control characters, limited length.

    Args:
        text: The text.
        limit: Largest number of characters.
        keep: Characters that are kept though they are not printable.
    """
    return "".join(char if char.isprintable() or char in keep else "?" for char in text[:limit])
