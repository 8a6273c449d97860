"""The environment of the fork server and the workers: what would break a run is put right, and said."""

from __future__ import annotations

from collections.abc import Mapping

#: Read when TensorFlow and numpy are imported, so the same for all workers of one fork server.
_READ_AT_IMPORT = ("OMP_NUM_THREADS",)


def fork_server_environment(
    environ: Mapping[str, str], worker_env: Mapping[str, str], *, verbose: bool
) -> tuple[dict[str, str], list[str]]:
    """The environment in which TensorFlow is imported.

    Args:
        environ: The user's environment.
        worker_env: What the plan sets for a worker.
        verbose: Let TensorFlow's informational messages through.

    Returns:
        The environment, and a line for each setting of the user's that was changed.
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
