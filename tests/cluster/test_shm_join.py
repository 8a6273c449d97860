"""How ranks meet: who is missing, who does not belong, and what is left in the folder."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.shm_support import KINDS, TOKEN, Ranks, meet, names, needs_futex
from tfmp.distribute.shm import JoinFailed, SharedMemoryGroup
from tfmp.distribute.shm.barrier import resolve_kind
from tfmp.distribute.shm.handshake import Introduction, Kind, Terms, introduce, read_refusal, receive
from tfmp.distribute.shm.join import SocketFolder
from tfmp.errors import UsageError


def total(group: SharedMemoryGroup) -> float:
    return float(group.all_reduce(np.ones(3))[0])


def hello(folder: Path, rank: int, me: Introduction) -> socket.socket:
    """Connect to a rank as another one; returns once it has answered."""
    opened = SocketFolder(folder)
    while (peer := opened.connect(rank)) is None:
        time.sleep(0.002)
    opened.close()
    introduce(peer, Kind.HELLO, me, TOKEN)
    assert select.select([peer], [], [], 5)[0]
    return peer


def test_peers_are_the_other_ranks_with_their_processes(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3, lambda group: group.peers) as ranks:
        pids = ranks.pids.copy()
        assert ranks.values() == [{r: pid for r, pid in pids.items() if r != rank} for rank in range(3)]


def test_a_late_rank_is_waited_for(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3, total, {0: None}) as early:
        time.sleep(0.05)
        with Ranks(tmp_path, 3, total, {1: None, 2: None}) as late:
            assert early.values() + late.values() == [3.0] * 3


@pytest.mark.parametrize("missing", [0, 3])
def test_a_missing_rank_is_named_by_all_others(tmp_path: Path, missing: int) -> None:
    with Ranks(tmp_path, 4, total, {missing: None}, timeout_s=0.4) as ranks:
        for outcome in ranks.outcomes():
            assert (outcome.error, outcome.ranks) == ("JoinFailed", (missing,))
            assert outcome.what == f"expected 4 ranks, but rank {missing} did not join within 0.4 s"
        assert names(ranks.folder) == []


def test_one_rank_that_gives_up_releases_the_others_at_once(tmp_path: Path) -> None:
    with Ranks(tmp_path, 4, total, {3: None, 1: {"timeout_s": 0.4}}, timeout_s=30) as ranks:
        began_s = time.monotonic()
        assert [outcome.ranks for outcome in ranks.outcomes()] == [(3,)] * 3
        assert time.monotonic() - began_s < 2


def test_a_rank_that_dies_while_the_group_forms_is_named(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3, total, {2: None}, timeout_s=30) as ranks:
        while not (ranks.folder / "rank-1").exists():
            time.sleep(0.002)
        time.sleep(0.1)  # ranks 0 and 1 have met and wait for rank 2
        killed_s = ranks.send(1, signal.SIGKILL)
        outcome = ranks.outcome(0)
    assert (outcome.error, outcome.ranks, outcome.what) == (
        "JoinFailed",
        (1,),
        "rank 1 has ended while the group formed",
    )
    assert outcome.at_s - killed_s < 0.5


def test_ranks_still_in_the_queue_are_told_why_a_rank_gave_up(tmp_path: Path) -> None:
    """Rank 2 connects while rank 1 is stopped, and rank 1's time is over when it goes on."""
    with Ranks(tmp_path, 3, total, {0: None, 2: None}, timeout_s=0.3) as ranks:
        while not (ranks.folder / "rank-1").exists():
            time.sleep(0.002)
        ranks.send(1, signal.SIGSTOP)
        os.waitid(os.P_PID, ranks.pids[1], os.WSTOPPED)
        folder = SocketFolder(ranks.folder)
        queued = folder.connect(1)
        folder.close()
        assert queued is not None
        with queued:
            time.sleep(0.35)
            ranks.send(1, signal.SIGCONT)
            outcome = ranks.outcome(1)
            assert outcome.ranks == (0, 2)
            kind, body, _ = receive(queued)
    assert kind is Kind.REFUSAL
    assert read_refusal(body) == (outcome.what, [0, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_never_got_ready_is_not_taken_for_one_that_arrived(tmp_path: Path, kind: str) -> None:
    """Rank 2 dies having told rank 0 alone that it is ready: for rank 0 the group stands, for rank 1 it fails."""

    def body(group: SharedMemoryGroup) -> None:
        meet(group)

    with Ranks(tmp_path, 3, body, {2: None}, kind=kind) as ranks:
        me = Introduction(2, os.getpid(), Terms(3, 1 << 20, kind))
        peers = [hello(ranks.folder, rank, me) for rank in (0, 1)]
        assert [receive(peer)[0] for peer in peers] == [Kind.WELCOME] * 2
        peers[0].send(Kind.READY.value)
        peers[0].send(Kind.ARRIVED.value)
        time.sleep(0.03)
        peers[1].close()
        first, second = ranks.outcomes()
        peers[0].close()
    assert (first.error, first.ranks) == ("PeerLost", (2,))
    assert first.what == "rank 1 has left while the group formed: rank 2 has ended while the group formed"
    assert (second.error, second.ranks) == ("JoinFailed", (2,))


@pytest.mark.parametrize("stranger", [0, 1, 2])
def test_a_rank_with_another_token_does_not_get_in(tmp_path: Path, stranger: int) -> None:
    with Ranks(tmp_path, 3, total, {stranger: {"token": b"another"}}, timeout_s=0.1) as ranks:
        outcomes = ranks.outcomes()
    assert [outcome.error for outcome in outcomes] == ["JoinFailed"] * 3
    assert any("does not accept the token" in outcome.what for outcome in outcomes)


def test_who_says_nothing_or_nonsense_is_turned_away_and_the_group_forms(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, total, {1: None}) as first:
        path = first.folder / "rank-0"
        while not path.exists():
            time.sleep(0.002)
        strangers = []
        for message in (None, b"H", b"R" + b"\xff" * 40, b"H" + b"x" * 60, b"!", b"."):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            strangers.append(sock)
            sock.connect(str(path))
            if message is not None:
                sock.send(message)
        with Ranks(tmp_path, 2, total, {0: None}) as second:
            assert first.values() + second.values() == [2.0, 2.0]
        for sock in strangers:
            sock.close()


@needs_futex
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size": 4}, "4 ranks, 1048576 bytes a slot, futex barrier"),
        ({"capacity_bytes": 100}, "3 ranks, 128 bytes a slot, futex barrier"),
        ({"kind": "socket"}, "3 ranks, 1048576 bytes a slot, socket barrier"),
    ],
)
def test_ranks_that_disagree_about_the_group_do_not_form_one(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with Ranks(tmp_path, 3, total, {1: change}, kind="futex", timeout_s=0.5) as ranks:
        outcomes = ranks.outcomes()
    assert [outcome.error for outcome in outcomes] == ["JoinFailed"] * 3
    assert any(f"rank 1 has {text}" in outcome.what for outcome in outcomes)


def test_a_folder_deeper_than_a_socket_path_may_be(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    with Ranks(deep, 3, total) as ranks:
        assert ranks.values() == [3.0] * 3
        assert names(ranks.folder) == []


def test_a_socket_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "group" / "rank-0"))
    with Ranks(tmp_path, 2, total) as ranks:
        assert ranks.values() == [2.0, 2.0]
        assert names(ranks.folder) == []


def test_the_same_rank_twice_is_refused(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, total, {1: None}) as first:
        while not (first.folder / "rank-0").exists():
            time.sleep(0.002)
        with Ranks(tmp_path, 2, total, {1: None}) as twice:
            outcome = twice.outcome(0)
            assert (outcome.error, outcome.what) == (
                "UsageError",
                "cannot make a socket for rank 0: Address already in use",
            )
        with Ranks(tmp_path, 2, total, {0: None}) as second:
            assert first.values() + second.values() == [2.0, 2.0]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_rank_comes_in_once_and_only_a_higher_one(tmp_path: Path, rank: int) -> None:
    with Ranks(tmp_path, 3, total, {0: None, 2: None}) as ranks:
        me = Introduction(rank, os.getpid(), Terms(3, 1 << 20, resolve_kind("auto")))
        with hello(ranks.folder, 1, me) as first, hello(ranks.folder, 1, me) as second:
            kinds = [receive(peer)[0] for peer in (first, second)]
    assert kinds == [Kind.WELCOME if rank == 2 else Kind.REFUSAL, Kind.REFUSAL]


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError, match="received mode 0755"):
        SharedMemoryGroup.join(tmp_path, 0, 2, token=TOKEN, timeout_s=1, spin=False)
    with pytest.raises(UsageError, match="cannot open the group's folder: No such file"):
        SharedMemoryGroup.join(tmp_path / "none", 0, 2, token=TOKEN, timeout_s=1, spin=False)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0, 65)])
def test_ranks_out_of_range_are_refused(tmp_path: Path, rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 64 ranks"):
        SharedMemoryGroup.join(tmp_path, rank, size, token=TOKEN, timeout_s=1, spin=False)


def test_failed_joins_leave_no_descriptor_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    before = names("/proc/self/fd")
    for rank in (0, 1):
        with pytest.raises(JoinFailed):
            SharedMemoryGroup.join(tmp_path, rank, 3, token=TOKEN, timeout_s=0.01, spin=False)
    assert names("/proc/self/fd") == before
    assert names(tmp_path) == []


def test_the_barrier_is_futex_only_where_the_processor_keeps_the_order_of_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tfmp.distribute.shm import futex

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    futex.available.cache_clear()
    try:
        assert resolve_kind("auto") == "socket"
        assert resolve_kind("socket") == "socket"
        with pytest.raises(JoinFailed, match="x86-64"):
            resolve_kind("futex")
    finally:
        futex.available.cache_clear()
