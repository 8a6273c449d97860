"""The environment of the fork server and the workers: threads, proxies, and what would break a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
#: Read when TensorFlow and numpy are imported, and so the same for all workers of one fork server.
_READ_AT_IMPORT = ("OMP_NUM_THREADS",)
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def fork_server_environment(
    environ: Mapping[str, str], worker_env: Mapping[str, str], *, verbose: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the environment in which TensorFlow is imported.

    Args:
        environ: The user's environment.
        worker_env: What the plan sets for a worker.
        verbose: Let TensorFlow's informational messages through.

    Returns:
        The environment, and a notice for each of the user's settings that was changed.
    """
    env, notices = dict(environ), []
    if env.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        notices.append(f"KERAS_BACKEND={env['KERAS_BACKEND']} is overridden: tfmp trains with tensorflow")
    env["KERAS_BACKEND"] = "tensorflow"
    if env.get("TF_USE_LEGACY_KERAS", "0").lower() not in ("0", "false", ""):
        notices.append("TF_USE_LEGACY_KERAS is ignored: tfmp trains with Keras 3")
    env.pop("TF_USE_LEGACY_KERAS", None)
    if not verbose:
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    for name in _READ_AT_IMPORT:
        if name in worker_env:
            env[name] = worker_env[name]
    return env, notices


def thread_env(
    cores: int, local_workers: int, environ: Mapping[str, str], threads_per_worker: int | None = None
) -> dict[str, str]:
    """Return the thread variables of each local worker.

    Without them each process starts as many threads as the machine has cores, whatever its siblings and quota.

    Args:
        cores: Cores for all local workers together.
        local_workers: Number of workers on this machine.
        environ: The user's environment; what it sets is kept.
        threads_per_worker: The configured number, which takes precedence over the environment.

    Returns:
        All three variables: max(1, cores // local_workers) threads each, unless set otherwise.
    """
    if threads_per_worker is not None:
        return dict.fromkeys(THREAD_VARIABLES, str(threads_per_worker))
    share = str(max(1, cores // local_workers))
    return {name: environ.get(name) or share for name in THREAD_VARIABLES}


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
