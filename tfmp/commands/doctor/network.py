"""Checks of the cluster: does each name resolve, and does each host answer?"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from threading import Thread

from tfmp.cluster.discovery.choose import index_by_name
from tfmp.cluster.spec import Address, ClusterSpec
from tfmp.commands.doctor.line import Line
from tfmp.rendezvous.peer_status import Kind, PeerStatus

#: Covers name servers that do not answer and hosts with several addresses.
_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")

Answer = PeerStatus | str
"""Why a worker was not reached, or the IP address at which something answered."""


def proxy_line(environ: Mapping[str, str]) -> Line:
    """Proxy variables, which gRPC would obey if workers did not set ``no_proxy``."""
    names = sorted(name for proxy in _PROXIES for name in (proxy, proxy.upper()) if environ.get(name))
    if not names:
        return Line("ok", "proxies", "none set")
    return Line("ok", "proxies", f"{', '.join(names)} set; workers bypass them")


def cluster_lines(addresses: Sequence[str], hostname: str) -> list[Line]:
    """Check each worker of a cluster, in at most ten seconds.

    Args:
        addresses: ``host:port`` by rank.
        hostname: This host's name.

    Raises:
        UsageError: An address is invalid.
    """
    spec = ClusterSpec.from_addresses(addresses)
    own = index_by_name(addresses, hostname)
    return [peer_line(rank, str(spec.address(rank)), answer, rank == own) for rank, answer in _ask(spec).items()]


def peer_line(rank: int, address: str, answer: Answer, own: bool) -> Line:
    """Return the line for a worker.

    Args:
        rank: Its rank.
        address: ``host:port``.
        answer: What was found there.
        own: Whether it is this host.
    """
    host, _, port = address.rpartition(":")
    name, place = f"worker {rank}", f"{address}, this host" if own else address
    if isinstance(answer, str):
        if own:
            return Line(
                "warn",
                name,
                f"{place}: its port is in use",
                f"if no training is running here, find the process: ss -ltnp 'sport = :{port}'",
            )
        return Line("ok", name, f"{place}: something is listening at {answer}")
    if answer.kind is Kind.REFUSED:
        return Line("ok", name, f"{place}: the host is up, nothing is listening: not started yet")
    if answer.kind is Kind.UNRESOLVED:
        fix = f"check the spelling of {host}, which must resolve on every host (DNS or /etc/hosts)"
        return Line("fail", name, f"{place}: {answer}", fix)
    fix = f"check that the host is up and that firewalls allow TCP port {port} in both directions"
    return Line("fail", name, f"{place}: {answer}", fix)


def _ask(spec: ClusterSpec) -> dict[int, Answer]:
    """Try to reach all workers at once, in threads, because the resolver may wait for seconds."""
    answers: dict[int, Answer] = {}

    def ask(rank: int, address: Address) -> None:
        answers[rank] = reach(address)

    threads = [Thread(target=ask, args=peer, daemon=True) for peer in enumerate(spec.addresses)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return {rank: answers.get(rank, PeerStatus(Kind.NO_ANSWER, "timed out")) for rank in range(spec.size)}


def reach(address: Address, timeout_s: float = _CONNECT_TIMEOUT_S) -> Answer:
    """Connect, and return the outcome.

    Args:
        address: The worker's address.
        timeout_s: Time limit for each IP address of the name.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as sock:
            return str(sock.getpeername()[0])
    except (socket.gaierror, UnicodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else None
        return PeerStatus(Kind.UNRESOLVED, (detail or "").lower())
    except ConnectionRefusedError:
        return PeerStatus(Kind.REFUSED)
    except OSError as error:
        detail = "timed out" if isinstance(error, TimeoutError) else str(error.strerror).lower()
        return PeerStatus(Kind.NO_ANSWER, detail)
