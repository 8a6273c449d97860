"""One launcher's part in its group, over real sockets: the loop around the state machines.

Everything runs in the caller's thread with one selector, and no call waits for a peer: only resolving and connecting
have threads of their own. The port's listener is closed at the start, so that TensorFlow's server can have the port.
The connections accepted before stay open and carry heartbeats, failures and the last message.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tfmp.cluster.spec import Address
from tfmp.ipc import NotOurs
from tfmp.rendezvous.base import Side
from tfmp.rendezvous.identity import Identity
from tfmp.rendezvous.leader import Leader, Peers
from tfmp.rendezvous.member import Member
from tfmp.rendezvous.peer_status import EndReason, Kind, PeerStatus, Roster
from tfmp.rendezvous.port_claim import PortClaim
from tfmp.rendezvous.protocol import Action, Close, Dial, Report, Say, Send, Waits
from tfmp.rendezvous.transport import Dialer, Link, Resolve, TrainingThere, WrongToken, listen, peer_of, resolve

#: Time limit for a stranger's greeting, and the most strangers at a time: slow clients, or thousands of them, do not
#: disturb the others.
_GREETING_TIMEOUT_S = 5.0
_MAX_STRANGERS = 64
_CLAIM_EVERY_S = 0.2
_POLL_S = 0.1
_CLOSE_TIMEOUT_S = 1.0


class Session:
    """Joins the other launchers of a group and keeps in touch with them. A context manager.

    Args:
        identity: This launcher.
        roster: The group; the address of rank 0 is known.
        waits: How long to wait for what.
        say: Prints a line for the user.
        token: ``cluster.token``; ``None`` for none.
        loopback: The loopback address to listen on, for a cluster of one machine; ``None`` for every interface.
        compose: See :class:`Leader`.
        clock: Monotonic seconds.
        resolve: Resolves names.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        waits: Waits,
        say: Callable[[str], None],
        *,
        token: str | None = None,
        loopback: str | None = None,
        compose: Callable[[Peers], Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = resolve,
    ) -> None:
        now_s = clock()
        self._identity = identity
        self._roster = roster
        self._say = say
        self._key = (token or "").encode()
        self._loopback = loopback
        self._clock = clock
        self._machine: Side
        if identity.rank:
            self._machine = Member(identity, roster, waits, now_s)
        else:
            self._machine = Leader(identity, roster, waits, now_s, *([compose] if compose else []))
        self._claim: PortClaim | None = None
        self._next_claim_s = now_s
        self._selector = selectors.DefaultSelector()
        self._dialer = Dialer(self._connected, self._found, resolve, now_s)
        self._selector.register(self._dialer, selectors.EVENT_READ, lambda _: self._dialer.collect())
        self._listener: socket.socket | None = None
        self._links: dict[int, Link] = {}
        self._strangers: dict[int, float] = {}
        self._dialed_ranks: dict[int, int] = {}
        self._last_number = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def end_reason(self) -> EndReason | None:
        """Why the group does not start, or ends; ``None`` while it runs."""
        if self._machine.end_reason is None and self._claim is not None:
            return self._claim.end_reason
        return self._machine.end_reason

    @property
    def started(self) -> bool:
        """Whether all are to start now."""
        return self._machine.started

    @property
    def start_message(self) -> Mapping[str, Any]:
        """What all start with: see ``compose``."""
        return self._machine.start_message

    @property
    def hang_s(self) -> float | None:
        """For how long a worker has waited for the others in vain, if one has: look where this host's is."""
        return self._machine.hang_s

    @property
    def may_leave(self) -> bool:
        """Whether all workers have ended well and know it."""
        return self._machine.may_leave

    @property
    def linked(self) -> bool:
        """Whether a connection to another launcher is open."""
        return bool(self._links)

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`poll` has something to do (it has timers too)."""
        return self._selector.fileno()

    def ready(self) -> None:
        """Report that this host could start."""
        self._do(self._machine.ready(self._clock()))

    def failed(self, report: Report) -> None:
        """Report that this host's worker has failed."""
        self._do(self._machine.failed(report, self._clock()))

    def done(self, sha256: str) -> None:
        """Report that this host's worker has ended well, with weights of this digest."""
        self._do(self._machine.done(sha256, self._clock()))

    def stopped(self, is_stopped: bool) -> None:
        """Report whether this host's worker process is stopped, as by SIGSTOP."""
        self._machine.stopped(is_stopped, self._clock())

    def poll(self, timeout_s: float = 0.0) -> None:
        """Handle what has arrived and what is due; wait at most ``timeout_s`` for something to arrive."""
        for key, events in self._selector.select(min(timeout_s, _POLL_S) if timeout_s > 0 else 0):
            key.data(events)
        now_s = self._clock()
        if self._listener is None and not self.started and self.end_reason is None and self._roster.size > 1:
            self._open_listener(now_s)
        self._dialer.tick(now_s)
        for number, since_s in list(self._strangers.items()):
            if now_s >= since_s + _GREETING_TIMEOUT_S:
                self._drop(number)
        if self._listener is not None or self._roster.size == 1 or self.started:
            self._do(self._machine.tick(now_s))
        if self.started and self._listener is not None:
            self._close_listener()

    def close(self) -> None:
        """Send what is left to send, then close everything. At most a second."""
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while any(link.wants_write for link in self._links.values()) and time.monotonic() < deadline_s:
            for link in self._links.values():
                link.flush()
            time.sleep(0.01)
        self._close_listener()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._dialer.close()
        self._selector.close()

    # The listener ----------------------------------------------------------------------------------------------------

    def _open_listener(self, now_s: float) -> None:
        if now_s >= self._next_claim_s:
            self._next_claim_s = now_s + _CLAIM_EVERY_S
            try:
                self._listener = listen(self._identity.port, self._loopback)
            except OSError as error:
                self._not_listening(error, now_s)
            else:
                self._claim = None
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
                return
        if self._claim is not None:
            self._do(self._claim.tick(now_s))

    def _not_listening(self, error: OSError, now_s: float) -> None:
        if error.errno == errno.EADDRINUSE:
            if self._claim is None:
                self._claim = PortClaim(self._identity, self._roster, now_s)
            return
        label = self._roster.label(self._identity.rank)
        self._machine.end_reason = EndReason(
            f"cannot listen on port {self._identity.port}: {error.strerror}", self._identity.rank, label, exit_code=2
        )

    def _close_listener(self) -> None:
        """Close the port for TensorFlow, and every connection whose other end has not joined by now."""
        if self._listener is None:
            return
        self._unwatch(self._listener)
        self._listener.close()
        self._listener = None
        for number in list(self._strangers):
            self._drop(number)

    def _accept(self, _: int) -> None:
        if self._listener is None:  # closed by what came just before
            return
        try:
            sock, address = self._listener.accept()
        except OSError:  # gone again, or no descriptor left for it
            return
        if len(self._strangers) >= _MAX_STRANGERS:
            self._drop(next(iter(self._strangers)))
        number = self._add(Link(sock, self._key, dialed=False, peer=peer_of(address)))
        self._strangers[number] = self._clock()

    # Connecting ------------------------------------------------------------------------------------------------------

    def _connected(self, rank: int, sock: socket.socket, peer: str) -> None:
        if rank == self._identity.rank and self._claim is None:  # its question has been settled
            sock.close()
            return
        number = self._add(Link(sock, self._key, dialed=True, peer=peer))
        self._dialed_ranks[number] = rank
        self._do(self._current.dialed(number, rank, self._clock()))

    def _found(self, rank: int, status: PeerStatus) -> None:
        if rank != self._identity.rank or self._claim is not None:
            self._do(self._current.found(rank, status, self._clock()))

    # Links -----------------------------------------------------------------------------------------------------------

    @property
    def _current(self) -> PortClaim | Side:
        return self._claim or self._machine

    def _add(self, link: Link) -> int:
        self._last_number += 1
        number = self._last_number
        self._links[number] = link
        self._selector.register(link, selectors.EVENT_READ, lambda events: self._serve(number, events))
        return number

    def _serve(self, number: int, events: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        link.flush()
        self._watch_writes(link)
        if link.closing:
            if not link.wants_write:
                self._drop(number)
            return
        now_s = self._clock()
        try:
            messages = link.receive()
            if messages is None:
                self._drop(number)
                return
            for message in messages:
                if number not in self._links:
                    return
                self._do(self._current.received(number, message, link.peer, now_s))
                self._strangers.pop(number, None)
        except NotOurs as error:
            self._turn_away(number, link, error, now_s)

    def _turn_away(self, number: int, link: Link, error: NotOurs, now_s: float) -> None:
        if link.dialed:
            kind = Kind.FOREIGN
            if isinstance(error, WrongToken):
                kind = Kind.OTHER_TOKEN
            elif isinstance(error, TrainingThere):
                kind = Kind.ALREADY_TRAINING
            status = PeerStatus(kind, "" if kind is not Kind.FOREIGN else str(error))
            self._found(self._dialed_ranks[number], status)
        else:
            if isinstance(error, WrongToken):  # it finds the proof wrong, and so learns why
                link.send({"type": "refused", "kind": Kind.OTHER_TOKEN.name, "text": ""})
            self._do(self._current.refuse(number, link.peer, str(error), now_s))
        if number in self._links:
            self._drop(number)

    def _drop(self, number: int) -> None:
        link = self._links.pop(number)
        self._strangers.pop(number, None)
        self._dialed_ranks.pop(number, None)
        self._unwatch(link)
        link.close()
        self._do(self._current.lost(number, self._clock()))

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Say(text):
                    self._say(text)
                case Dial(rank):
                    address = self._roster.addresses[rank]
                    assert address is not None
                    self._dialer.dial(rank, Address.parse(address))
                case Send(number, message):
                    if (link := self._links.get(number)) is not None:
                        link.send(message)
                        self._watch_writes(link)
                case Close(number):
                    if (link := self._links.get(number)) is not None:
                        link.closing = True
                        if not link.wants_write:
                            self._drop(number)
                        else:
                            self._strangers[number] = self._clock()

    def _watch_writes(self, link: Link) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        key = self._selector.get_key(link)
        if key.events != wanted:
            self._selector.modify(link, wanted, key.data)

    def _unwatch(self, what: Any) -> None:
        if what.fileno() >= 0:
            self._selector.unregister(what)
