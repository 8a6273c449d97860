"""Addresses of workers, and the cluster that they form."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass

from tfmp.errors import UsageError

_HOST_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\Z")
_MAX_HOST_LENGTH = 253  # RFC 1035, in the dotted form
_MAX_SHOWN = 80
_FIRST_PORT, _LAST_PORT = 1, 65535


def shown(value: object) -> str:
    """Return a value as JSON, cut to one short line, for error messages."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@dataclass(frozen=True)
class Address:
    """Host and port of one worker. IPv6 addresses are stored without their brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, where: str | None = None) -> Address:
        """Read ``host:port``, ``1.2.3.4:port`` or ``[ipv6]:port``.

        Args:
            text: The address.
            where: What to name in an error, such as ``cluster.workers[1]``.

        Raises:
            UsageError: Blanks, no port, a port outside 1..65535, IPv6 without brackets, or an invalid host name.
                TensorFlow itself accepts most of these, and then waits forever without a message.
        """

        def fail(what: str, hint: str | None = None) -> UsageError:
            return UsageError(f"{what}, received {shown(text)}", where=where, hint=hint)

        if any(character.isspace() for character in text):
            raise fail("expected an address without blanks", f"write {shown(''.join(text.split()))}")
        if "/" in text:
            raise fail("expected host:port", "leave out the scheme and the path")
        host, colon, port = text.rpartition(":")
        if text.startswith("["):
            if not host.endswith("]"):
                raise fail("expected [IPv6 address]:port", "for example [::1]:2222")
            host = host[1:-1]
            if not _is_ip(host, version=6):
                raise fail("expected an IPv6 address inside the brackets")
            _check_reachable(host, fail)
        elif text.count(":") > 1:
            bracketed = _is_ip(host, version=6) and port.isdigit()
            example = f"[{host}]:{port}" if bracketed else "[::1]:2222"
            raise fail("expected an IPv6 address in brackets", f"write {example}")
        elif not colon:
            raise fail("expected host:port", f"add the port, for example {text or 'worker-0'}:2222")
        else:
            _check_host(host, fail)
        if not re.fullmatch(r"[0-9]{1,6}", port) or not _FIRST_PORT <= int(port) <= _LAST_PORT:
            raise fail(f"expected a port in {_FIRST_PORT}..{_LAST_PORT}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only the worker's own machine can reach this address."""
        if _is_ip(self.host):
            return ipaddress.ip_address(self.host).is_loopback
        return _plain(self.host) in ("localhost", "ip6-localhost") or _plain(self.host).endswith(".localhost")

    @property
    def identity(self) -> tuple[str, int]:
        """Equal for two ways of writing the same address: case, IPv6 zeros, the names of loopback."""
        if self.is_loopback:
            # TensorFlow's server listens on every interface, so loopback addresses collide by port alone.
            return ("localhost", self.port)
        if _is_ip(self.host):
            return (str(ipaddress.ip_address(self.host)), self.port)
        return (_plain(self.host), self.port)


@dataclass(frozen=True)
class ClusterSpec:
    """All tasks of a training.

    The chief, if there is one, is rank 0 and the workers follow; otherwise worker 0 is rank 0 and does the chief's
    work. TensorFlow numbers them the same way. Evaluators take no part: they have no rank, are not counted, and nobody
    waits for them.

    Args:
        any_loopback: Accept loopback beside other hosts, for a caller that warns about it.

    Raises:
        UsageError: No chief and no worker, two tasks with one address, or loopback mixed with other hosts.
    """

    workers: tuple[Address, ...]
    chief: Address | None = None
    evaluators: tuple[Address, ...] = ()
    any_loopback: InitVar[bool] = False

    def __post_init__(self, any_loopback: bool) -> None:
        if not self.size:
            raise UsageError("expected at least one worker, received none", where="worker")
        tasks = [
            *([("chief[0]", self.chief)] if self.chief else []),
            *((f"worker[{i}]", address) for i, address in enumerate(self.workers)),
            *((f"evaluator[{i}]", address) for i, address in enumerate(self.evaluators)),
        ]
        seen: dict[tuple[str, int], str] = {}
        for place, address in tasks:
            if address.identity in seen:
                raise UsageError(
                    f"expected an address of its own, received {address}, which {seen[address.identity]} already has",
                    where=place,
                )
            seen[address.identity] = place
        loopback = [task for task in tasks if task[1].is_loopback]
        remote = [address for _, address in tasks if not address.is_loopback]
        if loopback and remote and not any_loopback:
            place, address = loopback[0]
            raise UsageError(
                f"expected addresses that every worker can reach, received loopback {address} beside {remote[0]}",
                where=place,
                hint="give the machine's name or network address instead of loopback",
            )

    @classmethod
    def local(cls, host: str, ports: Sequence[int]) -> ClusterSpec:
        """Return a cluster of workers on one host, one per port."""
        return cls(tuple(Address(host, port) for port in ports))

    @classmethod
    def from_addresses(
        cls, addresses: Sequence[str], where: str = "cluster.workers", *, any_loopback: bool = False
    ) -> ClusterSpec:
        """Return a cluster of workers from texts such as ``a:2222``; errors name ``where`` and the position.

        Raises:
            UsageError: An address is wrong, or the addresses do not make a cluster.
        """
        parsed = tuple(Address.parse(text, f"{where}[{index}]") for index, text in enumerate(addresses))
        try:
            return cls(parsed, any_loopback=any_loopback)
        except UsageError as error:
            place = (error.where or "").removeprefix("worker")
            raise UsageError(error.what, where=f"{where}{place}", hint=error.hint) from None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses by rank."""
        return (self.chief, *self.workers) if self.chief else self.workers

    @property
    def size(self) -> int:
        """Number of ranks: the workers, and the chief if there is one."""
        return len(self.workers) + (self.chief is not None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The distinct hosts, in rank order."""
        return tuple(dict.fromkeys(address.host for address in self.addresses))

    @property
    def host_numbers(self) -> tuple[int, ...]:
        """Each rank's host as a number, from 0 in rank order: by the addresses alone."""
        names = [address.identity[0] for address in self.addresses]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return tuple(numbers[name] for name in names)

    def address(self, rank: int) -> Address:
        """Return a rank's address.

        Raises:
            UsageError: No such rank.
        """
        self._check_rank(rank)
        return self.addresses[rank]

    def task(self, rank: int) -> tuple[str, int]:
        """Return a rank's task type and index, as TF_CONFIG names it.

        Raises:
            UsageError: No such rank.
        """
        self._check_rank(rank)
        if self.chief is None:
            return ("worker", rank)
        return ("chief", 0) if rank == 0 else ("worker", rank - 1)

    def count(self, task_type: str) -> int:
        """Return the number of tasks of a type."""
        if task_type == "chief":
            return int(self.chief is not None)
        return {"worker": len(self.workers), "evaluator": len(self.evaluators)}.get(task_type, 0)

    def rank_of(self, task_type: str, index: int) -> int:
        """Return the rank of a task.

        Raises:
            UsageError: No such task, or an evaluator, which has no rank.
        """
        if task_type not in ("chief", "worker"):
            raise UsageError(f"expected a task that trains (chief, worker), received {task_type}", where="task.type")
        if not 0 <= index < self.count(task_type):
            raise UsageError(
                f"expected an index of {task_type} in {index_range(self.count(task_type))}, received {index}",
                where="task.index",
            )
        return 0 if task_type == "chief" else index + (self.chief is not None)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"expected a rank in {index_range(self.size)}, received {rank}", where="rank")


def position_on_host(hosts: Sequence[int], rank: int) -> tuple[int, int]:
    """Return a worker's number among the workers on its host, and the number of these.

    Args:
        hosts: Each rank's host.
        rank: The worker's rank.
    """
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def check_port_range(first: int, ports: int, where: str) -> None:
    """Check that a range of consecutive ports exists.

    Args:
        first: The first port.
        ports: Number of ports.
        where: What to name in an error, such as ``--base-port``.

    Raises:
        UsageError: It begins before the first port, or ends after the last.
    """
    last = first + ports - 1
    if first < _FIRST_PORT or last > _LAST_PORT:
        raise UsageError(
            f"expected {ports} consecutive ports between {_FIRST_PORT} and {_LAST_PORT}, received {first} to {last}",
            where=where,
            hint=f"give a port between {_FIRST_PORT} and {_LAST_PORT - ports + 1}",
        )


def index_range(count: int) -> str:
    """Return the allowed indices as text: ``0..3``, or ``(none)`` if there are none."""
    return f"0..{count - 1}" if count else "(none)"


def _check_host(host: str, fail: Callable[..., UsageError]) -> None:
    if not host:
        raise fail("expected host:port, a host before the port")
    if "_" in host:
        raise fail(
            'expected a host name without "_" (underscore), which many resolvers refuse',
            f"name the host {host.replace('_', '-')}",
        )
    numeric = re.fullmatch(r"[0-9.]+", host) is not None
    labels = host.removesuffix(".").split(".")
    if numeric and not _is_ip(host, version=4):
        raise fail("expected an IPv4 address of four numbers in 0..255")
    if not numeric and (len(host) > _MAX_HOST_LENGTH or not all(_HOST_LABEL.match(label) for label in labels)):
        raise fail("expected a host name of letters, digits, hyphens and dots")
    if numeric:
        _check_reachable(host, fail)


def _check_reachable(host: str, fail: Callable[..., UsageError]) -> None:
    if ipaddress.ip_address(host).is_unspecified:
        raise fail("expected an address that the other workers can reach", f"{host} is only for listening")


def _is_ip(text: str, version: int | None = None) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return version is None or address.version == version


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")
