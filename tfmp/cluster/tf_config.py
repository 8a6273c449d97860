"""Reads TF_CONFIG and explains every mistake in it, and writes it.

TensorFlow reads it leniently: without ``cluster`` it trains alone, an index of 0.9 becomes 0, the last of two equal
keys wins, and it waits silently for an address that does not exist. Here each of these is an error with its place.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfmp.cluster.spec import Address, ClusterSpec, index_range, shown
from tfmp.errors import UsageError

MAX_TEXT_BYTES = 64 * 1024
VARIABLE = "TF_CONFIG"
_JOBS = ("chief", "worker", "evaluator")
_UNSUPPORTED = {
    "ps": ("parameter servers are not supported: every worker holds the whole model", "remove the ps tasks"),
    "master": ("the task type master is not supported", "name it chief"),
}


@dataclass(frozen=True)
class TfConfig:
    """A cluster and this process's task in it.

    Attributes:
        spec: The cluster.
        task_type: ``chief``, ``worker`` or ``evaluator``.
        index: Position among the tasks of that type.
    """

    spec: ClusterSpec
    task_type: str
    index: int

    @property
    def rank(self) -> int | None:
        """This process's rank; ``None`` for an evaluator, which takes no part in the training."""
        return None if self.task_type == "evaluator" else self.spec.rank_of(self.task_type, self.index)


def parse_tf_config(text: str | None) -> TfConfig | None:
    """Read the value of TF_CONFIG.

    Keys that TensorFlow does not know (``environment``, as Kubernetes' TFJob writes it) are accepted. An index written
    as a string of digits (``"1"``) counts as that number, as in TensorFlow.

    Args:
        text: The variable's value; ``None`` or blank (docker-compose passes empty variables) counts as unset.

    Returns:
        The cluster and the task; ``None`` if TF_CONFIG is unset.

    Raises:
        UsageError: It is not a cluster of chief, workers and evaluators with this process in it.
    """
    if text is None or not text.strip():
        return None
    config = _decode(text)
    if not isinstance(config, dict):
        hint = "remove the quotes around the whole value" if isinstance(config, str) and "{" in config else None
        raise _error(f"expected a JSON object, received {shown(config)}", hint=hint)
    spec = _read_cluster(_member(config, "cluster", ""))
    task = _member(config, "task", "")
    task_type = _read_task_type(_member(task, "type", "task."), spec)
    # The cluster may leave the evaluator out, as nobody connects to it: then there is one.
    count = spec.count(task_type) or 1
    index = parse_index(task.get("index"), count, f"{VARIABLE} task.index", present="index" in task)
    return TfConfig(spec, task_type, index)


def make_tf_config(spec: ClusterSpec, task_type: str, index: int) -> str:
    """Return the value of TF_CONFIG for one task: compact JSON, the same text for the same arguments.

    Raises:
        UsageError: The cluster has no such task.
    """
    if not 0 <= index < spec.count(task_type):
        raise UsageError(
            f"expected an index of {task_type} in {index_range(spec.count(task_type))}, received {index}",
            where="task.index",
        )
    cluster: dict[str, list[str]] = {}
    jobs: Sequence[tuple[str, Sequence[Address]]] = (
        ("chief", (spec.chief,) if spec.chief else ()),
        ("worker", spec.workers),
        ("evaluator", spec.evaluators),
    )
    for job, addresses in jobs:
        if addresses:
            cluster[job] = [str(address) for address in addresses]
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}}, separators=(",", ":"))


def parse_index(value: object, count: int, where: str, *, present: bool = True) -> int:
    """Read a worker's index.

    Args:
        value: An int, or a string of ASCII digits, which counts as that int.
        count: Number of tasks to choose from: 0..count-1 is allowed.
        where: What to name in an error, such as ``--index``.
        present: ``False`` says "received nothing" instead of the value.

    Raises:
        UsageError: Naming the value and the range: a bool, float, negative or other value, or none.
    """
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        received = shown(value) if present else "nothing"
        raise UsageError(f"expected an index in {index_range(count)}, received {received}", where=where)
    return value


class _Object(dict[str, Any]):
    """A JSON object that remembers a key that the text had twice."""

    repeated: str | None = None


def _to_object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object()
    for key, value in pairs:
        if key in result:
            result.repeated = key
        result[key] = value
    return result


def _refuse_constant(name: str) -> None:
    raise _error(f"expected JSON, received {name}, which JSON does not have")


def _decode(text: str) -> Any:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise _error(f"expected at most {MAX_TEXT_BYTES:,} bytes, received {len(text):,} characters")
    try:
        config = json.loads(text, object_pairs_hook=_to_object, parse_constant=_refuse_constant)
        _refuse_repeated(config, "")
    except json.JSONDecodeError as error:
        reason, hint = _explain(text, error)
        raise _error(
            f"expected JSON, received {reason}", place=f"line {error.lineno}, column {error.colno}", hint=hint
        ) from None
    except (RecursionError, ValueError):  # Python limits how deep it recurses, and how many digits make an int
        raise _error("expected a cluster, received thousands of brackets or digits") from None
    return config


def _explain(text: str, error: json.JSONDecodeError) -> tuple[str, str | None]:
    """Return what is wrong and a hint, for common mistakes."""
    position = error.pos
    rest = text[position:].lstrip()
    before = text[:position].rstrip()
    # Python 3.13 points at the comma, older versions behind it.
    comma = before[-1:] == "," or rest[:1] == ","
    if comma and rest.removeprefix(",").lstrip()[:1] in ("}", "]"):
        return "a comma before a closing bracket", "remove the trailing comma"
    if rest.startswith("'"):
        return "single quotes", 'JSON wants double quotes: {"cluster": ...}'
    if rest.startswith('\\"'):
        return 'a backslash before "', "remove the backslashes, and put the whole value in single quotes in the shell"
    if not rest:
        return "text that ends too early", "close every bracket and quote"
    return f"{shown(rest[:20])} ({error.msg})", None


def _refuse_repeated(value: object, path: str) -> None:
    if isinstance(value, _Object):
        if value.repeated is not None:
            raise _error(f"expected each key once, received {shown(value.repeated)} twice", f"{path}{value.repeated}")
        for key, child in value.items():
            _refuse_repeated(child, f"{path}{key}.")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _refuse_repeated(child, f"{path.removesuffix('.')}[{index}].")


def _member(parent: dict[str, Any], key: str, path: str) -> Any:
    """Return ``parent[key]``; ``cluster`` and ``task`` must be objects."""
    place = f"{path}{key}"
    if key not in parent:
        near = difflib.get_close_matches(key, [name.lower() for name in parent], n=1, cutoff=0.6)
        wrong = next((name for name in parent if near and name.lower() == near[0]), None)
        found = ", ".join(sorted(shown(name) for name in parent)[:8]) or "no keys"
        raise _error(
            f'expected the key "{key}", received {found}',
            place,
            hint=f"rename {shown(wrong)} to {key}" if wrong else _MISSING_HINTS[place],
        )
    value = parent[key]
    if not path and not isinstance(value, dict):
        raise _error(f"expected an object, received {shown(value)}", place)
    return value


_MISSING_HINTS = {
    "cluster": "add the addresses of all workers; without them each worker would train alone. Or unset TF_CONFIG",
    "task": 'say which worker this is: "task": {"type": "worker", "index": 0}',
    "task.type": 'say which worker this is: "task": {"type": "worker", "index": 0}',
}


def _read_cluster(cluster: dict[str, Any]) -> ClusterSpec:
    tasks: dict[str, tuple[Address, ...]] = {}
    for job, addresses in cluster.items():
        place = f"cluster.{job}"
        _check_job(job, place)
        if not isinstance(addresses, list):
            hint = f"write [{shown(addresses)}]" if isinstance(addresses, str) else None
            raise _error(f'expected a list of "host:port", received {shown(addresses)}', place, hint=hint)
        if not addresses:
            raise _error('expected at least one "host:port", received an empty list', place)
        for index, address in enumerate(addresses):
            if not isinstance(address, str):
                raise _error(f'expected "host:port", received {shown(address)}', f"{place}[{index}]")
        tasks[job] = tuple(Address.parse(a, f"{VARIABLE} {place}[{i}]") for i, a in enumerate(addresses))
    chiefs = tasks.get("chief", ())
    if len(chiefs) > 1:
        raise _error(f"expected at most one chief, received {len(chiefs)}", "cluster.chief")
    try:
        return ClusterSpec(tasks.get("worker", ()), chiefs[0] if chiefs else None, tasks.get("evaluator", ()))
    except UsageError as error:
        raise _error(error.what, f"cluster.{error.where}", hint=error.hint) from None


def _read_task_type(task_type: object, spec: ClusterSpec) -> str:
    place = "task.type"
    if not isinstance(task_type, str):
        raise _error(f"expected one of {', '.join(_JOBS)}, received {shown(task_type)}", place)
    _check_job(task_type, place)
    if not spec.count(task_type) and task_type != "evaluator":
        raise _error(f"expected a task type of the cluster, received {task_type}, which has no address", place)
    return task_type


def _check_job(job: str, place: str) -> None:
    if job in _JOBS:
        return
    if job in _UNSUPPORTED:
        reason, hint = _UNSUPPORTED[job]
        raise _error(f"expected one of {', '.join(_JOBS)}, received {job}: {reason}", place, hint=hint)
    near = difflib.get_close_matches(job.lower(), _JOBS, n=1, cutoff=0.6)
    raise _error(
        f"expected one of {', '.join(_JOBS)}, received {shown(job)}",
        place,
        hint=f"did you mean {near[0]}?" if near else None,
    )


def _error(what: str, place: str = "", *, hint: str | None = None) -> UsageError:
    return UsageError(what, where=f"{VARIABLE} {place}".rstrip(), hint=hint)
