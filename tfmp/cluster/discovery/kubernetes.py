"""Kubernetes: pods of an Indexed Job or of a StatefulSet, which are numbered and have numbered host names.

A pod is not told how many there are; ``cluster.workers`` says it. The names resolve through a headless Service: the
pods' ``subdomain`` (Indexed Job) or ``serviceName`` (StatefulSet).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfmp.cluster.discovery.found import Discovered, check_rank, read_number
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.errors import UsageError

DEFAULT_PORT = 2222
_INDEX = "JOB_COMPLETION_INDEX"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_POD_NAME = re.compile(r"(?P<stem>.+)-(?P<index>[0-9]{1,5})\Z", re.ASCII)


def in_pod(environ: Mapping[str, str], hostname: str) -> bool:
    """Whether this process runs in a pod with a number: an Indexed Job's, or a StatefulSet's by its host name."""
    return _INDEX in environ or (_IN_CLUSTER in environ and _POD_NAME.match(hostname.partition(".")[0]) is not None)


def from_kubernetes(
    environ: Mapping[str, str], *, hostname: str, size: int | None, base_port: int | None = None
) -> Discovered:
    """Return the cluster of an Indexed Job's or a StatefulSet's pods.

    Args:
        environ: The environment.
        hostname: This pod's host name with its domain, such as ``train-1.workers.ns.svc.cluster.local``.
        size: Number of pods; ``None`` if the configuration does not say.
        base_port: The port of every pod; ``None`` for 2222.

    Raises:
        UsageError: No number, a host name without it or without a domain, or no size.
    """
    name, _, domain = hostname.partition(".")
    match = _POD_NAME.match(name)
    if _INDEX in environ:
        rank, source = read_number(environ, _INDEX), f"Indexed Job ({_INDEX}, host name"
        if match is None or int(match["index"]) != rank:
            raise UsageError(
                f"expected a host name that ends in -{rank}, as {_INDEX} says, received {hostname}",
                where=_INDEX,
                hint="set completionMode: Indexed, and no hostname of your own, in the Job",
            )
    elif match is not None:
        rank, source = int(match["index"]), "StatefulSet (host name"
    else:
        raise UsageError(
            f"expected {_INDEX}, or a host name that ends in a number, received {hostname}",
            where="--cluster kubernetes",
            hint="run the workers as an Indexed Job or as a StatefulSet",
        )
    if size is None:
        raise UsageError(
            "expected the number of pods, which Kubernetes does not tell a pod",
            where="cluster.workers",
            hint="give it as --workers 4, or as cluster.workers in the configuration",
        )
    check_rank(rank, size, f"{_INDEX if _INDEX in environ else 'host name'} with cluster.workers {size}")
    if size > 1 and not domain:
        raise UsageError(
            f"expected a host name with the domain of a headless Service, received {hostname}",
            where="host name",
            hint="add a headless Service and name it as the pods' subdomain (Job) or serviceName (StatefulSet)",
        )
    port = base_port or DEFAULT_PORT
    suffix = f".{domain}" if domain else ""
    spec = ClusterSpec(tuple(Address(f"{match['stem']}-{index}{suffix}", port) for index in range(size)))
    found = f"Kubernetes {source}): pod {rank} of {size}"
    return Discovered("kubernetes", found, size, rank, spec=spec, local=(0, 1))
