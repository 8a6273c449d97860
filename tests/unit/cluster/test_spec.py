"""Addresses and clusters: what would make TensorFlow wait for ever is refused, ranks are TensorFlow's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.cluster.spec import Address, ClusterSpec, position_on_host
from tfmp.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a:1", "a", 1),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("[::1]:2222", "::1", 2222),
        ("job-worker-0.ns.svc:2222", "job-worker-0.ns.svc", 2222),
        ("host.example.:80", "host.example.", 80),
    ],
)
def test_addresses_are_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        ("a", "expected host:port", "add the port, for example a:2222"),
        ("", "expected host:port", "add the port, for example worker-0:2222"),
        (":1", "expected host:port, a host before the port", None),
        ("a:", "expected a port in 1..65535", None),
        ("a:0", "expected a port in 1..65535", None),
        ("a:65536", "expected a port in 1..65535", None),
        ("a:-1", "expected a port in 1..65535", None),
        ("a:٣", "expected a port in 1..65535", None),
        (" a:1", "expected an address without blanks", 'write "a:1"'),
        ("a: 1", "expected an address without blanks", 'write "a:1"'),
        ("::1:2222", "expected an IPv6 address in brackets", "write [::1]:2222"),
        ("fe80::1", "expected an IPv6 address in brackets", "write [::1]:2222"),
        ("[::1]", "expected [IPv6 address]:port", "for example [::1]:2222"),
        ("[a]:1", "expected an IPv6 address inside the brackets", None),
        ("worker_1:2", 'expected a host name without "_" (underscore)', "name the host worker-1"),
        ("a..b:1", "expected a host name of letters", None),
        ("-a:1", "expected a host name of letters", None),
        ("a" * 64 + ".b" * 100 + ":1", "expected a host name of letters", None),
        ("10.0.0:1", "expected an IPv4 address", None),
        ("10.0.0.256:1", "expected an IPv4 address", None),
        ("0.0.0.0:1", "expected an address that the other workers can reach", "0.0.0.0 is only for listening"),
        ("[::]:1", "expected an address that the other workers can reach", ":: is only for listening"),
        ("grpc://a:1", "expected host:port", "leave out the scheme and the path"),
    ],
)
def test_a_wrong_address_is_explained(text: str, expected: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Address.parse(text, "cluster.workers[1]")
    assert caught.value.what.startswith(expected)
    assert caught.value.where == "cluster.workers[1]"
    assert caught.value.hint == hint


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="aZ09.:[]%_-/ \t\u0663\u00df\ud800", max_size=20))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        address = Address.parse(text)
    except UsageError:
        return
    assert Address.parse(str(address)) == address


def spec(*workers: str, chief: str | None = None, evaluators: tuple[str, ...] = ()) -> ClusterSpec:
    return ClusterSpec(
        tuple(map(Address.parse, workers)),
        Address.parse(chief) if chief else None,
        tuple(map(Address.parse, evaluators)),
    )


def test_the_chief_is_rank_0_and_counts() -> None:
    cluster = spec("h:2", "h:3", chief="h:1", evaluators=("e:1",))
    assert cluster.size == 3
    assert [cluster.task(rank) for rank in range(3)] == [("chief", 0), ("worker", 0), ("worker", 1)]
    assert [str(cluster.address(rank)) for rank in range(3)] == ["h:1", "h:2", "h:3"]
    assert [cluster.rank_of("chief", 0), cluster.rank_of("worker", 0), cluster.rank_of("worker", 1)] == [0, 1, 2]


def test_without_a_chief_worker_0_is_rank_0() -> None:
    cluster = spec("b:1", "a:1")
    assert [cluster.task(rank) for rank in range(2)] == [("worker", 0), ("worker", 1)]
    assert [cluster.rank_of("worker", index) for index in range(2)] == [0, 1]
    assert cluster.hosts == ("b", "a")


def test_ranks_and_tasks_outside_the_cluster_name_the_range() -> None:
    cluster = spec("a:1", "b:1")
    for ask in (lambda: cluster.address(2), lambda: cluster.task(-1), lambda: cluster.rank_of("worker", 2)):
        with pytest.raises(UsageError, match=r"0\.\.1"):
            ask()
    with pytest.raises(UsageError, match=r"expected a task that trains \(chief, worker\), received evaluator"):
        cluster.rank_of("evaluator", 0)


@pytest.mark.parametrize(
    "pair",
    [
        ("a:1", "A:1"),
        ("a:1", "a.:1"),
        ("[2001:db8::1]:5", "[2001:db8:0::1]:5"),
        ("localhost:1", "127.0.0.1:1"),
        ("127.0.0.1:1", "127.0.0.2:1"),
    ],
)
def test_two_ways_of_writing_one_address_are_found(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        ClusterSpec.from_addresses(pair, "--workers")
    assert caught.value.where == "--workers[1]"
    assert caught.value.what == f"expected an address of its own, received {pair[1]}, which worker[0] already has"


def test_loopback_beside_other_hosts_is_refused_and_alone_is_fine() -> None:
    with pytest.raises(UsageError, match="received loopback localhost:1 beside h1:1") as caught:
        ClusterSpec.from_addresses(["h1:1", "localhost:1"])
    assert caught.value.where == "cluster.workers[1]"
    assert ClusterSpec.from_addresses(["localhost:1", "127.0.0.1:2", "[::1]:3"]).size == 3
    assert ClusterSpec.local("127.0.0.1", [5, 6]) == spec("127.0.0.1:5", "127.0.0.1:6")


def test_a_cluster_of_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="expected at least one worker, received none"):
        spec(evaluators=("a:1",))
    with pytest.raises(UsageError) as caught:
        ClusterSpec.from_addresses([], "--workers")
    assert caught.value.where == "--workers"
    assert spec(chief="a:1").size == 1


def test_hosts_are_numbered_by_their_names() -> None:
    spec = ClusterSpec.from_addresses(["h1:1", "h0:1", "H1.:2"])
    assert spec.host_numbers == (0, 1, 0)
    assert [position_on_host(spec.host_numbers, rank) for rank in range(3)] == [(0, 2), (0, 1), (1, 2)]
