"""What ``tfmp worker`` does first: find the cluster and this worker's place in it, check, plan."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfmp.agent.options import TrainOptions
from tfmp.agent.placement import (
    Placement,
    count_machine_cpus,
    find_placement,
    neighbours,
    own_dir,
    share_host,
)
from tfmp.agent.resume import (
    EarlierRun,
    find_earlier,
)
from tfmp.cluster.discovery.choose import Asked, Source, discover
from tfmp.cluster.discovery.found import Discovered
from tfmp.commands.user_code import check_user_code
from tfmp.config import Resolved
from tfmp.data.cache import CachedDataset, prepare
from tfmp.errors import UsageError
from tfmp.planning.host import Host, oversubscribed
from tfmp.planning.plan import make_plan

if TYPE_CHECKING:
    from tfmp.planning.plan import Plan


@dataclass(frozen=True)
class WorkerOptions:
    """What the command line says beside the configuration.

    Attributes:
        index: ``--index`` as typed.
        source: ``--cluster``.
        arguments: The command line without ``--index``, for the commands of the other hosts.
        common: What ``tfmp train`` takes too.
    """

    index: str | None
    source: Source
    arguments: Sequence[str]
    common: TrainOptions


@dataclass(frozen=True)
class PreparedWorker:
    """What is known before the workers meet."""

    place: Placement
    host: Host
    dataset: CachedDataset
    plan: Plan
    going_on: EarlierRun
    warnings: tuple[str, ...]


def prepare_worker(resolved: Resolved, options: WorkerOptions, tell: Callable[[str], None]) -> PreparedWorker | None:
    """Find the cluster, check and plan; ``None`` for an evaluator, which has nothing to do.

    Raises:
        UsageError: Something is wrong with the settings, the cluster, the data or the host.
    """
    found = _discover(resolved, options, tell)
    if found.rank is None:
        tell("evaluator: nothing to do, every worker takes its share of the validation")
        return None
    place = find_placement(found, found.rank)
    _check(resolved, place, options.common)
    check_user_code(resolved)
    going_on = find_earlier(
        resolved, own_dir(resolved.config.run.dir, place.rank), rank=place.rank, wanted=options.common.resume, tell=tell
    )
    whole = Host.here()
    host = share_host(whole, place, count_machine_cpus())
    crowded = oversubscribed(whole.cores, neighbours(place)[1]) if host.cores < whole.cores else None
    dataset = prepare(resolved.config.data, tell)
    plan = make_plan(resolved.config, dataset.header, host, place.cluster, [place.rank])
    return PreparedWorker(place, host, dataset, plan, going_on, (crowded,) if crowded else ())


def _discover(resolved: Resolved, options: WorkerOptions, tell: Callable[[str], None]) -> Discovered:
    cluster = resolved.config.cluster
    origin = resolved.origin("cluster.workers")
    asked = Asked(
        source=options.source,
        addresses=cluster.worker_addresses,
        count=None if origin == "default" or cluster.worker_addresses is not None else cluster.worker_count,
        index=options.index,
        rendezvous=cluster.rendezvous,
        base_port=cluster.base_port,
    )
    if "TF_CONFIG" in os.environ and not os.environ["TF_CONFIG"].strip():
        tell("note: TF_CONFIG is empty, which counts as unset")
    found = discover(asked, os.environ, hostname=_hostname(), parent_pid=os.getppid())
    tell(f"cluster: {found.found}")
    if found.warning is not None:
        tell(f"warning: {found.warning}")
    if found.source == "manual" and os.environ.get("TF_CONFIG", "").strip():
        tell("note: TF_CONFIG is set and not used: addresses and --index were given")
    if asked.count is not None and asked.count != found.size:
        if origin.startswith("--"):
            raise UsageError(
                f"expected {found.size} workers, as {found.source} says, received {asked.count}",
                where=origin,
                hint=f"leave {origin} out",
            )
        tell(f"note: cluster.workers ({asked.count}, {origin}) is for tfmp train; {found.source} says {found.size}")
    return found


def _hostname() -> str:
    """This host's name with its domain where that is known, as a pod's is in /etc/hosts."""
    name = socket.gethostname()
    full = socket.getfqdn(name) if "KUBERNETES_SERVICE_HOST" in os.environ else name
    return full if full.startswith(name) else name


def _check(resolved: Resolved, place: Placement, options: TrainOptions) -> None:
    if not resolved.config.cluster.is_multi_process:
        raise UsageError(
            f"expected multi-worker, received {resolved.config.cluster.strategy}",
            where="cluster.strategy",
            hint="tfmp train --strategy mirrored runs in one process",
        )
    wanted = own_dir(resolved.config.run.dir, place.rank)
    if wanted is not None and (wanted / "config.yaml").exists() and not options.resume:
        raise UsageError(
            "this folder already holds a run, which is never overwritten",
            where=str(wanted),
            hint="choose another --run-dir, remove the folder first, or go on with that run: --resume",
        )
