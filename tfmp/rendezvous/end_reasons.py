"""Reasons that name one worker: why this one cannot join, or which one ended a running group, and how."""

from __future__ import annotations

from collections.abc import Mapping

from tfmp.rendezvous.peer_status import EndReason, Kind, Roster, way_out
from tfmp.rendezvous.protocol import Report

#: 128 + SIGUSR1: what Kubeflow's training operator takes for an error that a restart may cure, where codes from 1 to
#: 127 are for good (the restart policy ExitCode).
EXIT_PEER_LOST = 138

_LEADER = 0
_RESTART = "restart the whole group: tfmp worker on every host"


def taken(roster: Roster, rank: int, holder: str) -> EndReason:
    """Another worker has this rank; ``holder`` says which one: ``by process 7 on h1``."""
    return EndReason(
        f"{roster.names[rank]} is already taken by another worker, {holder}",
        rank,
        roster.label(rank),
        "give each worker its own --index, or stop the other one first",
        2,
    )


def other_token(roster: Roster, rank: int) -> EndReason:
    """A worker has another shared secret."""
    what = f"{roster.names[rank]} has another cluster.token"
    return EndReason(what, rank, roster.label(rank), way_out(roster, rank, Kind.OTHER_TOKEN), 2)


def already_training(roster: Roster, own: int) -> EndReason:
    """The leader trains with others, and nobody can join."""
    return EndReason(
        f"{roster.names[_LEADER]} is training already, without this worker, which cannot join now",
        _LEADER,
        roster.label(_LEADER),
        f"the whole group must be restarted: stop tfmp worker on every host, then start all, {roster.names[own]} too",
    )


def failed(roster: Roster, rank: int, report: Report) -> EndReason:
    """A worker has reported how it failed."""
    name, place = roster.names[rank], roster.label(rank)
    if report.where:
        place = report.where if report.where.startswith(place) else f"{place}, {report.where}"
    what = report.what if report.what.startswith(name) else f"{name} failed: {report.what}"
    return EndReason(what, rank, place, report.hint, report.exit_code)


def vanished(roster: Roster, rank: int) -> EndReason:
    """A worker's launcher has ended without a word."""
    return EndReason(
        f"{roster.names[rank]} is gone: its launcher ended without a word (killed, out of memory, or its host is down)",
        rank,
        roster.label(rank),
        f"check the host of {roster.names[rank]}, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def cut_off(roster: Roster, rank: int, silent_s: float) -> EndReason:
    """A worker's launcher is silent over an open connection."""
    return EndReason(
        f"{roster.names[rank]} is lost: nothing heard from it for {silent_s:.0f} s (its host or the network is down, "
        "or it is stopped)",
        rank,
        roster.label(rank),
        f"check the network to the host of {roster.names[rank]}, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def frozen(roster: Roster, rank: int, stopped_s: float) -> EndReason:
    """A worker's process is stopped, as by SIGSTOP, while its launcher lives."""
    return EndReason(
        f"{roster.names[rank]} is stopped: its process has been suspended for {stopped_s:.0f} s (SIGSTOP, a debugger, "
        "or a frozen container)",
        rank,
        roster.label(rank),
        f"find out who suspended it, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def unequal_weights(roster: Roster, digests: Mapping[int, str]) -> EndReason:
    """All have ended well, but not with the same weights."""
    held = ", ".join(f"{roster.names[rank]}: {digest[:12]}" for rank, digest in sorted(digests.items()))
    return EndReason("expected the same trained weights on every worker", where=held)
