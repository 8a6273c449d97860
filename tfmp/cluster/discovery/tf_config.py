"""TF_CONFIG, as people and Kubeflow's training operator write it."""

from __future__ import annotations

from collections.abc import Mapping

from tfmp.cluster.discovery.found import Discovered
from tfmp.cluster.tf_config import parse_tf_config
from tfmp.errors import UsageError

VARIABLE = "TF_CONFIG"


def from_tf_config(environ: Mapping[str, str]) -> Discovered:
    """Return the cluster that TF_CONFIG describes.

    Raises:
        UsageError: It is not set, or wrong: see :func:`tfmp.cluster.tf_config.parse_tf_config`.
    """
    config = parse_tf_config(environ.get(VARIABLE))
    if config is None:
        state = "is empty" if VARIABLE in environ else "is not set"
        raise UsageError(
            f"expected a cluster in {VARIABLE}, which {state}",
            where=VARIABLE,
            hint="set it, or give the cluster as --workers HOST:PORT,HOST:PORT --index I",
        )
    size = config.spec.size
    found = f"{VARIABLE}: {config.task_type} {config.index} of a cluster of {size}"
    return Discovered("tf-config", found, size, config.rank, spec=config.spec)


def is_set(environ: Mapping[str, str]) -> bool:
    """Whether TF_CONFIG says anything: docker-compose passes empty variables, which count as unset."""
    return bool(environ.get(VARIABLE, "").strip())
