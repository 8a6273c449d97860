"""The deployment files: each template in ``templates/`` filled in with the values of a :class:`Deployment`."""

from __future__ import annotations

import json
import math
import shlex
import string
from collections.abc import Iterable
from importlib import resources

from tfmp.deploy.deployment import Deployment
from tfmp.text import count

#: The port of every worker; each has a host name of its own, so one number serves all.
PORT = 2222
#: The image's user, its directory for runs, and where the configuration is mounted (see docker/Dockerfile).
USER_ID = 10001
RUNS = "/runs"
CONFIG = "/config.yaml"
#: After success or wrong usage a retry would end the same way. 143 is not final: srun stops the tasks of a failed
#: group with SIGTERM and returns the highest of their codes. The script notices a stop by itself.
_FINAL_CODES = "0|2"


class _Template(string.Template):
    """``@{name}``: ``$`` belongs to the shell, to Compose and to Kubernetes."""

    delimiter = "@"


def compose(deployment: Deployment, file: str = "compose.yaml") -> str:
    """Return a Compose file with one service per worker, for Compose v2 and docker-compose 1.29.

    Args:
        deployment: What to deploy.
        file: The path that the heading names.
    """
    names = _host_names(deployment.workers)
    build = []
    if deployment.build:
        build = [
            "build:",
            f"  context: {_yaml(_without_variables(deployment.build))}",
            "  dockerfile: docker/Dockerfile",
            '  args: {BASE_IMAGE: "${BASE_IMAGE:-python:3.11-slim}"}',
        ]
    data = [word for file in deployment.data for word in ("--set", f"{file.key}=/data{file.path}")]
    mounts = [f"{_relative(deployment.config)}:{CONFIG}:ro"] if deployment.config else []
    mounts += [f"{file.path}:/data{file.path}:ro" for file in deployment.data]
    config = CONFIG if deployment.config else None
    command = _worker_command(deployment, config, [*data, "--workers", addresses(deployment.workers)])
    return _fill(
        "compose.yaml",
        workers=count(deployment.workers, "worker"),
        up=f"docker compose -f {file} up{' --build' if build else ''}",
        runs=RUNS,
        folder=deployment.folder_name,
        code_note=_code_note(deployment),
        made_by=deployment.made_by,
        image=_yaml(_without_variables(deployment.image)),
        build=build,
        command=_yaml_items(map(_without_variables, command)),
        volumes=_yaml_items(map(_without_variables, [*mounts, f"runs:{RUNS}"])),
        restart=_yaml(f"on-failure:{deployment.max_restarts}" if deployment.max_restarts else "no"),
        stop_s=deployment.stop_s,
        cpus=deployment.cpus,
        memory_mib=deployment.memory_mib,
        services=[f"{name}: {{<<: *worker, hostname: {name}}}" for name in names],
    )


def slurm(deployment: Deployment, file: str = "job.sbatch") -> str:
    """Return a batch script with one task per worker.

    Args:
        deployment: What to deploy.
        file: The path that the heading names.
    """
    folder = deployment.run_dir or f"runs/{deployment.folder_name}-$SLURM_JOB_ID"
    config = [deployment.config] if deployment.config else []
    command = ["tfmp", "worker", *config, *deployment.set_words, "--run-dir", folder, "--resume"]
    return _fill(
        "job.sbatch",
        file=file,
        code_note=_code_note(deployment),
        made_by=deployment.made_by,
        name=deployment.label,
        workers=deployment.workers,
        cpus=deployment.cpus,
        memory_per_cpu_mib=math.ceil(deployment.memory_mib / deployment.cpus),
        attempts=" ".join(map(str, range(deployment.max_restarts + 1))),
        # In double quotes the script's own variable stays one.
        command=" ".join(f'"{word}"' if "$SLURM" in word else shlex.quote(word) for word in command),
        final_codes=_FINAL_CODES,
    )


def kubernetes(deployment: Deployment, file: str = "kubernetes.yaml") -> str:
    """Return an Indexed Job with its headless Service, NetworkPolicy, volume claim and configuration.

    Args:
        deployment: What to deploy.
        file: The path that the heading names.
    """
    name, config = deployment.label, deployment.config_text
    workers = ["--workers", str(deployment.workers), "--cluster", "kubernetes"]
    command = _worker_command(deployment, None if config is None else CONFIG, workers)
    mount = f"- {{name: config, mountPath: {CONFIG}, subPath: {CONFIG[1:]}, readOnly: true}}"
    volume = f"- {{name: config, configMap: {{name: {name}}}}}"
    return _fill(
        "kubernetes.yaml",
        workers=count(deployment.workers, "worker"),
        file=file,
        name=name,
        image_name=deployment.image,
        data_notes=[
            f"{data.key} must be at {data.path} in every pod: in the image or on a volume." for data in deployment.data
        ],
        code_note=_code_note(deployment),
        made_by=deployment.made_by,
        config_map=[] if config is None else _config_map(name, config).splitlines(),
        port=PORT,
        worker_count=deployment.workers,
        backoff_limit=deployment.workers * deployment.max_restarts,
        max_restarts=deployment.max_restarts,
        stop_s=deployment.stop_s,
        user=USER_ID,
        runs=RUNS,
        image=_yaml(deployment.image),
        # $(NAME) would be a variable.
        command=_yaml_items(word.replace("$(", "$$(") for word in command),
        cpus=deployment.cpus,
        memory_mib=deployment.memory_mib,
        config_mount=[] if config is None else [mount],
        config_volume=[] if config is None else [volume],
    )


def addresses(workers: int) -> str:
    """Return the workers' addresses in a Compose network, as ``--workers`` takes them."""
    return ",".join(f"{name}:{PORT}" for name in _host_names(workers))


def _host_names(workers: int) -> list[str]:
    """The services, whose names are host names: without underscores."""
    return [f"worker-{rank}" for rank in range(workers)]


def _worker_command(deployment: Deployment, config: str | None, options: list[str]) -> list[str]:
    run_dir = ["--run-dir", f"{RUNS}/{deployment.folder_name}"]
    return ["worker", *([config] if config else []), *deployment.set_words, *options, *run_dir, "--resume"]


def _config_map(name: str, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    is_plain = not text.startswith((" ", "\n")) and all(line.isprintable() for line in lines)
    content = (
        ["config.yaml: |", *(f"  {line}".rstrip() for line in lines)] if is_plain else [f"config.yaml: {_yaml(text)}"]
    )
    return _fill("config-map.yaml", name=name, content=content)


def _code_note(deployment: Deployment) -> list[str]:
    """The heading's note on the user's own code."""
    return [f"Your own code must be importable there: {', '.join(deployment.own_code)}."] if deployment.own_code else []


def _fill(template: str, **values: object) -> str:
    """Fill in a template. A list has a line to itself, which becomes one line per item, or none."""
    text = (resources.files("tfmp.deploy") / "templates" / template).read_text(encoding="utf-8")
    blocks = {f"@{{{name}}}": value for name, value in values.items() if isinstance(value, list)}
    texts = {name: str(value) for name, value in values.items() if not isinstance(value, list)}
    filled: list[str] = []
    for line in text.splitlines():
        indent, mark, rest = line.partition("@")
        items = blocks.get(mark + rest)
        if items is None:
            filled.append(_Template(line).substitute(texts))
        else:
            filled += [f"{indent}{item}".rstrip() for item in items]
    return "\n".join(filled) + "\n"


def _yaml(text: str) -> str:
    """Return text as a YAML scalar in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _yaml_items(words: Iterable[str]) -> list[str]:
    return [f"- {_yaml(word)}" for word in words]


def _relative(path: str) -> str:
    """Return a path that Compose does not mistake for the name of a volume."""
    return path if path.startswith(("/", "./", "../")) else f"./{path}"


def _without_variables(text: str) -> str:
    """Return text in which Compose replaces nothing."""
    return text.replace("$", "$$")
