"""The verdicts of a running group: which worker ended it, and how."""

from __future__ import annotations

from collections.abc import Mapping

from tfmp.cluster.rendezvous.findings import Roster, Verdict
from tfmp.cluster.rendezvous.protocol import Report

#: 128 + SIGUSR1: what Kubeflow's training operator takes for an error that a restart may cure, where codes from 1 to
#: 127 are for good (the restart policy ExitCode).
EXIT_PEER_LOST = 138

_RESTART = "restart the whole group: tfmp worker on every host"


def failed(roster: Roster, rank: int, report: Report) -> Verdict:
    """A worker has said how it failed."""
    name, place = roster.names[rank], roster.label(rank)
    if report.where:
        place = report.where if report.where.startswith(place) else f"{place}, {report.where}"
    what = report.what if report.what.startswith(name) else f"{name} failed: {report.what}"
    return Verdict(what, rank, place, report.hint, report.exit_code)


def vanished(roster: Roster, rank: int) -> Verdict:
    """A worker's launcher is gone without a word."""
    return Verdict(
        f"{roster.names[rank]} is gone: its launcher ended without a word (killed, out of memory, or its host is down)",
        rank,
        roster.label(rank),
        f"look at the host of {roster.names[rank]}, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def cut_off(roster: Roster, rank: int, silent_s: float) -> Verdict:
    """A worker's launcher is silent over an open connection."""
    return Verdict(
        f"{roster.names[rank]} is lost: nothing heard from it for {silent_s:.0f} s (its host or the network is down, "
        "or it is stopped)",
        rank,
        roster.label(rank),
        f"check the network to the host of {roster.names[rank]}, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def frozen(roster: Roster, rank: int, stopped_s: float) -> Verdict:
    """A worker's process is stopped, as by SIGSTOP, while its launcher lives."""
    return Verdict(
        f"{roster.names[rank]} is stopped: its process has been suspended for {stopped_s:.0f} s (SIGSTOP, a debugger, "
        "or a frozen container)",
        rank,
        roster.label(rank),
        f"find out who suspended it, then {_RESTART}",
        EXIT_PEER_LOST,
    )


def unequal_weights(roster: Roster, digests: Mapping[int, str]) -> Verdict:
    """All have ended well, but not with the same weights."""
    held = ", ".join(f"{roster.names[rank]}: {digest[:12]}" for rank, digest in sorted(digests.items()))
    return Verdict("expected the same trained weights on every worker", where=held)
