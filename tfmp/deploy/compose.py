"""A Compose file: one service a worker, for Compose v2 and docker-compose 1.29."""

from __future__ import annotations

from tfmp.deploy.deployment import CONFIG, PORT, RUNS, Deployment, heading, quoted
from tfmp.text import count

FILE_NAME = "compose.yaml"


def compose(deployment: Deployment, file: str = FILE_NAME) -> str:
    """Return the file's text.

    Args:
        deployment: What to deploy.
        file: The path the heading names.
    """
    one = deployment
    up = f"docker compose -f {file} up{' --build' if one.build else ''}"
    lines = heading(
        [
            f"{count(one.workers, 'worker')}, a container each, on a network of their own that leads nowhere else.",
            "",
            f"  {up} --exit-code-from worker-0",
            "",
            "trains and ends with worker 0's exit code. In the background (-d in place of --exit-code-from worker-0) a",
            "group that fails starts again by itself. `stop` in place of `up ...` saves a checkpoint, `up ...` goes on",
            f"from there; `down -v` removes the run, which is {RUNS}/{one.folder_name} in the volume runs.",
            "docker-compose 1.29 takes the same words.",
            *one.code_lines,
            f"Made by: {one.made_by}",
            "For another number of workers: the same with another number, and --force.",
        ]
    )
    names = _names(one.workers)
    lines += ["", "x-worker: &worker", f"  image: {quoted(_literal(one.image))}"]
    if one.build:
        lines += [
            "  build:",
            f"    context: {quoted(_literal(one.build))}",
            "    dockerfile: docker/Dockerfile",
            '    args: {BASE_IMAGE: "${BASE_IMAGE:-python:3.11-slim}"}',
        ]
    lines += [
        "  command:",
        *(f"    - {quoted(_literal(word))}" for word in _words(one)),
        "  volumes:",
        *(f"    - {quoted(_literal(mount))}" for mount in _mounts(one)),
        "  networks: [workers]",
        f"  restart: {quoted(f'on-failure:{one.max_restarts}') if one.max_restarts else quoted('no')}",
        f"  stop_grace_period: {one.stop_s}s",
        f"  cpus: {one.cpus}",
        f"  mem_limit: {one.memory_mib}m",
        "  pids_limit: 1024",
        "  shm_size: 256m  # NCCL (GPUs) wants more than Docker's 64 MB; CPU workers use none",
        "  read_only: true",
        "  tmpfs: [/tmp]",
        "  cap_drop: [ALL]",
        '  security_opt: ["no-new-privileges:true"]',
        "",
        "services:",
        *(f"  {name}: {{<<: *worker, hostname: {name}}}" for name in names),
        "",
        "networks:",
        "  workers:",
        "    internal: true",
        "",
        "volumes:",
        "  runs: {}",
    ]
    return "\n".join(lines) + "\n"


def addresses(workers: int) -> str:
    """Return the workers' addresses, as ``--workers`` takes them."""
    return ",".join(f"{name}:{PORT}" for name in _names(workers))


def _names(workers: int) -> list[str]:
    """Services, which are host names: no underscore in them."""
    return [f"worker-{rank}" for rank in range(workers)]


def _words(one: Deployment) -> list[str]:
    """The command: each container finds its own place in the list by its host name."""
    config = [CONFIG] if one.config else []
    data = [word for file in one.data for word in ("--set", f"{file.key}={_inside(file.path)}")]
    ways = ["--workers", addresses(one.workers), "--run-dir", f"{RUNS}/{one.folder_name}", "--resume"]
    return ["worker", *config, *one.set_words, *data, *ways]


def _mounts(one: Deployment) -> list[str]:
    mounts = [f"{_local(one.config)}:{CONFIG}:ro"] if one.config else []
    return [*mounts, *(f"{file.path}:{_inside(file.path)}:ro" for file in one.data), f"runs:{RUNS}"]


def _local(path: str) -> str:
    """A path that Compose does not take for a volume's name."""
    return path if path.startswith(("/", "./", "../")) else f"./{path}"


def _inside(path: str) -> str:
    return f"/data{path}"


def _literal(text: str) -> str:
    """A text in which Compose replaces nothing."""
    return text.replace("$", "$$")
