"""Plans of made-up runs, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tfmp.cluster.spec import ClusterSpec
from tfmp.config import RunConfig
from tfmp.data.entry import ArrayLayout
from tfmp.planning.host import Host
from tfmp.planning.plan import Plan, make_plan


def header(train_samples: int = 60_000, validation_samples: int = 10_000, classes: int = 10) -> Any:
    return SimpleNamespace(
        name="made up",
        train_samples=train_samples,
        validation_samples=validation_samples,
        inputs=[ArrayLayout("|u1", (train_samples, 28, 28), 0)],
        targets=[ArrayLayout("<i4", (train_samples,), 0)],
        classes=classes,
    )


def config(**keys: Any) -> RunConfig:
    """A configuration with ``section__key`` set; a model of which nothing is known."""
    sections: dict[str, dict[str, Any]] = {"model": {"factory": "own:model"}}
    for key, value in keys.items():
        section, name = key.split("__")
        sections.setdefault(section, {})[name] = value
    return RunConfig.model_validate(sections)


def make(
    workers: int = 4,
    *,
    cores: int = 16,
    cpus: Sequence[int] | None = None,
    gpus: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
    cluster: ClusterSpec | None = None,
    ranks: Sequence[int] = (),
    train_samples: int = 60_000,
    **keys: Any,
) -> Plan:
    """A plan; of a local run with ports from 2000 on, where no cluster is given."""
    run = config(cluster__workers=1 if cluster or keys.get("cluster__strategy") else workers, **keys)
    host = Host(cores, tuple(range(cores) if cpus is None else cpus), gpus, environ or {})
    made = make_plan(run, header(train_samples), host, cluster, ranks)
    return made if cluster else made.with_ports(range(2000, 2000 + made.port_count))
