"""Groups that meet over real sockets: in any order, undisturbed by strangers, and the port is free at the start."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tfmp.ipc import encode_frame
from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.peer_status import Roster
from tfmp.rendezvous.protocol import Report, Waits
from tfmp.rendezvous.session import Session
from tfmp.rendezvous.transport import listen, resolve

QUICK = Waits(
    start_timeout_s=20.0, beat_every_s=0.1, first_summary_s=0.1, first_answers_s=0.1, summary_every_s=0.1,
    dial_every_s=0.05, restart_s=0.3,
)  # fmt: skip


class Group:
    """Sessions on loopback, all served by this thread."""

    def __init__(self, size: int) -> None:
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(size)]
            self.ports = [sock.getsockname()[1] for sock in sockets]
        self.roster = Roster([f"worker {rank}" for rank in range(size)], [f"127.0.0.1:{port}" for port in self.ports])
        self.sessions: list[Session] = []
        self.said: dict[Session, list[str]] = {}

    def add(self, rank: int, *, waits: Waits = QUICK, agreed: object = 1, pid: int = 0, **more: Any) -> Session:
        lines: list[str] = []
        identity = Identity(rank, {"setting": agreed}, f"h{rank}", pid or 100 + rank, port=self.ports[rank])
        session = Session(identity, self.roster, waits, lines.append, loopback="127.0.0.1", **more)
        self.sessions.append(session)
        self.said[session] = lines
        return session

    def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, self.said.values()
            for session in self.sessions:
                session.poll(0.002)

    def serve(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > until_s)

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture
def group() -> Iterator[Callable[[int], Group]]:
    made: list[Group] = []

    def make(size: int) -> Group:
        made.append(Group(size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def started(sessions: Sequence[Session]) -> Callable[[], bool]:
    return lambda: all(session.started for session in sessions)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_workers_meet_in_any_order_and_the_port_is_free_beside_the_open_connections(
    group: Callable[[int], Group], order: Sequence[int]
) -> None:
    three = group(3)
    for rank in order:
        session = three.add(rank)
        session.ready()
        three.serve(0.05)
    three.until(started(three.sessions))
    for port in three.ports:
        with listen(port):
            pass
    three.until(lambda: True)
    for session in three.sessions:
        session.done("abc")
    three.until(lambda: all(session.may_leave for session in three.sessions))
    assert all(session.end_reason is None for session in three.sessions)


def test_strangers_do_not_disturb(group: Callable[[int], Group]) -> None:
    two = group(2)
    leader = two.add(0)
    two.until(lambda: any("waiting" in line for line in two.said[leader]))
    strangers = []
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 100_000,
                 b"tfmp\xff\xff\xff\xff", encode_frame({"type": "hello"}, b"", b"hello"), b"tfm"):  # fmt: skip
        sock = socket.create_connection(("127.0.0.1", two.ports[0]))
        sock.settimeout(0.05)
        with contextlib.suppress(OSError):
            sock.sendall(data)
        strangers.append(sock)
    scanned = [socket.create_connection(("127.0.0.1", two.ports[0])) for _ in range(100)]
    leader.ready()
    member = two.add(1)
    member.ready()
    two.until(started([leader, member]))
    assert leader.end_reason is None
    for sock in [*strangers, *scanned]:
        sock.close()


def test_of_too_many_strangers_the_oldest_goes(group: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfmp.rendezvous.session._MAX_STRANGERS", 2)
    two = group(2)
    leader = two.add(0)
    two.until(lambda: any("waiting" in line for line in two.said[leader]))
    with contextlib.ExitStack() as held:
        strangers = []
        for _ in range(3):
            strangers.append(held.enter_context(socket.create_connection(("127.0.0.1", two.ports[0]))))
            strangers[-1].setblocking(False)
            two.serve(0.03)
        assert strangers[0].recv(1) == b""
        for stranger in strangers[1:]:
            with pytest.raises(BlockingIOError):
                stranger.recv(1)


def test_a_slow_client_is_dropped(group: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfmp.rendezvous.session._GREETING_TIMEOUT_S", 0.1)
    two = group(2)
    leader = two.add(0)
    two.until(lambda: any("waiting" in line for line in two.said[leader]))
    with socket.create_connection(("127.0.0.1", two.ports[0])) as slow:
        slow.sendall(b"tfmp")
        slow.setblocking(False)

        def dropped() -> bool:
            try:
                return slow.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        two.until(dropped)


def test_a_worker_without_the_token_is_turned_away_and_the_others_wait_on(group: Callable[[int], Group]) -> None:
    two = group(2)
    leader = two.add(0, token="open sesame")
    wrong = two.add(1, token="open barley")
    two.until(lambda: wrong.end_reason is not None)
    assert wrong.end_reason is not None
    assert wrong.end_reason.what == "worker 0 has another cluster.token"
    assert leader.end_reason is None
    wrong.close()
    two.sessions.remove(wrong)
    right = two.add(1, token="open sesame")
    leader.ready()
    right.ready()
    two.until(started([leader, right]))
    assert "note: turned away a connection from 127.0.0.1: a message with another cluster.token" in two.said[leader]


def test_a_worker_set_otherwise_ends_both(group: Callable[[int], Group]) -> None:
    two = group(2)
    sessions = [two.add(0, agreed=1), two.add(1, agreed=2)]
    two.until(lambda: all(session.end_reason is not None for session in sessions))
    assert {session.end_reason.what for session in sessions if session.end_reason} == {
        "the workers do not agree about setting: worker 0 has 1, worker 1 has 2"
    }


def test_the_same_worker_twice_on_one_host(group: Callable[[int], Group]) -> None:
    two = group(2)
    first = two.add(1, pid=7)
    two.until(lambda: bool(two.said[first]))
    second = two.add(1, pid=8)
    two.until(lambda: second.end_reason is not None)
    assert second.end_reason is not None
    assert second.end_reason.what == "worker 1 is already taken by another worker, by process 7 on h1"
    assert first.end_reason is None


def test_a_failure_reaches_every_worker_at_once(group: Callable[[int], Group]) -> None:
    three = group(3)
    for rank in range(3):
        three.add(rank).ready()
    three.until(started(three.sessions))
    three.sessions[2].failed(Report("signal 9 (SIGKILL)", exit_code=137))
    three.until(lambda: all(session.end_reason is not None for session in three.sessions), 1.0)
    assert {session.end_reason.what for session in three.sessions if session.end_reason} == {
        "worker 2 failed: signal 9 (SIGKILL)"
    }


@pytest.mark.parametrize("lost", [0, 1])
def test_a_launcher_that_ends_without_a_word_is_noticed_at_once(group: Callable[[int], Group], lost: int) -> None:
    two = group(2)
    for rank in range(2):
        two.add(rank).ready()
    two.until(started(two.sessions))
    gone, survivor = two.sessions[lost], two.sessions[1 - lost]
    two.sessions.remove(gone)
    gone.close()
    two.until(lambda: survivor.end_reason is not None, 1.0)
    assert survivor.end_reason is not None
    assert survivor.end_reason.what.startswith(f"worker {lost} is gone")


def test_a_grpc_server_at_the_leaders_address_is_a_training_that_goes_on(group: Callable[[int], Group]) -> None:
    two = group(2)
    with socket.create_server(("127.0.0.1", two.ports[0])) as server:
        server.setblocking(False)
        member = two.add(1)
        accepted: list[socket.socket] = []

        def greeted() -> bool:
            with contextlib.suppress(BlockingIOError):
                sock, _ = server.accept()
                sock.sendall(bytes.fromhex("000006040000000000000400003fff"))
                accepted.append(sock)
            return member.end_reason is not None

        two.until(greeted)
        for sock in accepted:
            sock.close()
    assert member.end_reason is not None
    assert "worker 0 is training already" in member.end_reason.what


def test_a_name_that_is_slow_to_resolve_holds_nothing_up(group: Callable[[int], Group]) -> None:
    def slow(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
        time.sleep(0.3)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    two = group(2)
    two.roster = Roster(two.roster.names, [two.roster.addresses[0], "nobody.invalid:1"])
    leader = two.add(0, resolve=slow)
    began = time.monotonic()
    leader.poll()
    assert time.monotonic() - began < 0.2
    two.until(lambda: any("its name does not resolve (name or service not known)" in line for line in two.said[leader]))


def test_a_name_service_that_does_not_answer_is_told_and_its_late_answer_is_used(
    group: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfmp.rendezvous.transport._RESOLVE_TIMEOUT_S", 0.1)
    answered, asked = threading.Event(), []

    def away(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
        asked.append(host)
        answered.wait(10)
        return resolve("127.0.0.1", port)

    two = group(2)
    two.roster = Roster(two.roster.names, [two.roster.addresses[0], f"far.example:{two.ports[1]}"])
    leader = two.add(0, resolve=away)
    silent = "its name does not resolve (the name service does not answer)"
    two.until(lambda: any(silent in line for line in two.said[leader]))
    two.serve(0.5)
    assert asked == ["far.example"], "it is asked once, not again at every attempt"
    answered.set()
    two.until(lambda: "connection refused" in two.said[leader][-1])


def test_a_name_that_never_resolves_does_not_hold_up_closing(group: Callable[[int], Group]) -> None:
    answered = threading.Event()

    def away(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
        answered.wait(10)
        return resolve("127.0.0.1", port)

    two = group(2)
    leader = two.add(0, resolve=away)
    two.serve(0.1)
    began_s = time.monotonic()
    leader.close()
    assert time.monotonic() - began_s < 0.5
    two.sessions.remove(leader)
    (thread,) = [thread for thread in threading.enumerate() if "_work" in thread.name]
    assert thread.daemon
    answered.set()
    thread.join(5)
    assert not thread.is_alive()
