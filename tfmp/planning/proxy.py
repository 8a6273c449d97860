"""Proxy variables: keep the traffic between workers away from a company's proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def no_proxy_env(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables that exempt the cluster's hosts from the proxy.

    gRPC sends every connection through the proxy of its lower-case variables, loopback included, and compares host
    names as text: ``localhost`` does not cover ``127.0.0.1``. So each host of the cluster is named. gRPC reads
    ``no_grpc_proxy`` before ``no_proxy``: where the user has set it, it gets the same list.

    Args:
        environ: The environment that the workers inherit.
        hosts: Hosts of the cluster, without ports.

    Returns:
        ``no_proxy`` and ``NO_PROXY`` with the user's entries first; empty where no proxy is set.
    """
    if not any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):
        return {}
    names = ["no_proxy", "NO_PROXY"]
    if environ.get("no_grpc_proxy"):
        names.append("no_grpc_proxy")
    kept = (entry.strip() for name in names for entry in environ.get(name, "").split(","))
    entries = dict.fromkeys([*filter(None, kept), *(host.strip("[]") for host in hosts), *_LOOPBACK])
    return dict.fromkeys(names, ",".join(entries))
