"""Exit codes, causes and the surroundings of real workers, both programs and forked functions."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launch_support import Case, run_group
from tfmp.errors import TfmpError
from tfmp.workers.fork_client import ForkServer


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.start(private_network="off") as fork_server:
        yield fork_server


@pytest.fixture(scope="module")
def forking() -> Iterator[ForkServer]:
    with ForkServer.start(
        ["tests.cluster.launch_chatty_import", "tests.cluster.launch_support"], private_network="off"
    ) as fork_server:
        yield fork_server


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end_leftovers()


def test_the_first_failures_exit_code_is_kept_though_another_worker_was_done_before(
    fork_server: ForkServer, case: Case
) -> None:
    result = run_group(fork_server, case.programs("time.sleep(0.2 * i); sys.exit(3 * i)", 2))
    assert result.exit_code == 3
    assert [(e.rank, e.cause) for e in result.exits] == [(0, "done"), (1, "failed")]


@pytest.mark.parametrize("failing", [0, 2, 3])
def test_one_failing_worker_ends_the_group(fork_server: ForkServer, case: Case, failing: int) -> None:
    began_s = time.monotonic()
    result = run_group(
        fork_server, case.programs(f"sys.exit(7) if i == {failing} else time.sleep(600)", 4), settle_s=0.3
    )
    assert time.monotonic() - began_s <= 5
    assert result.exit_code == 7
    assert result.first_failure is not None
    assert (result.first_failure.rank, result.first_failure.describe()) == (failing, "exit code 7")
    assert [e.cause for e in result.exits if e.rank != failing] == ["stopped by tfmp"] * 3
    case.assert_nothing_left()


def test_the_culprit_is_named_not_its_victims(fork_server: ForkServer, case: Case) -> None:
    # Each victim waits for the one that fails before it.
    before = {0: 3, 1: 0}
    code = f"""
gone = {str(case.folder)!r} + '/gone-'
while i in {before} and not os.path.exists(gone + str({before}[i])): time.sleep(0.01)
time.sleep(600 if i == 2 else 0.1)
open(gone + str(i), 'w')
print('cause', i)
sys.exit(5 if i == 3 else 1)
"""
    result = run_group(fork_server, case.programs(code, 4))
    assert result.exit_code == 5
    assert result.first_failure is not None
    assert result.first_failure.rank == 3
    assert result.order == (3, 0, 1)
    assert result.exits[2].cause == "stopped by tfmp"
    assert result.tail(3) == ["cause 3"]


def test_death_by_signal(fork_server: ForkServer, case: Case) -> None:
    result = run_group(fork_server, case.programs("os.kill(os.getpid(), 9)"))
    assert result.exit_code == 137
    assert result.exits[0].describe() == "signal 9 (SIGKILL)"
    assert result.exits[0].peak_rss_bytes is not None
    assert 2**20 < result.exits[0].peak_rss_bytes < 2**30


def test_programs_that_cannot_be_run(fork_server: ForkServer, case: Case, tmp_path: Path) -> None:
    plain, no_interpreter, no_first_line = (tmp_path / name for name in ("plain.sh", "lost.sh", "bare.sh"))
    plain.write_text("#!/bin/sh\n")
    no_interpreter.write_text("#!/no/such/interpreter\n")
    no_first_line.write_text("echo hello\n")
    for script in (no_interpreter, no_first_line):
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    expected = {
        "no_such_cmd": (127, "command not found: no_such_cmd"),
        str(tmp_path / "nothing"): (127, f"command not found: {tmp_path}/nothing"),
        str(plain): (126, f"cannot execute {plain}: Permission denied"),
        str(tmp_path): (126, f"cannot execute {tmp_path}: Permission denied"),
        str(no_interpreter): (126, f"cannot execute {no_interpreter}: no such interpreter as its first line names"),
        str(no_first_line): (126, f"cannot execute {no_first_line}: not a program, and without a #! line"),
    }
    for command, (code, reason) in expected.items():
        result = run_group(fork_server, case.command(command))
        assert (result.exit_code, result.exits[0].reason) == (code, reason)
        assert case.log().read_text() == f"tfmp: {reason}\n"


def test_the_command_is_looked_up_in_the_workers_own_path(fork_server: ForkServer, case: Case, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nexec pwd "$@"\n')
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    result = run_group(fork_server, case.command("my-tool", env={"PATH": path}))
    assert (result.exit_code, case.log().read_text()) == (0, f"{Path.cwd()}\n")


def test_a_worker_on_cpus_that_do_not_exist_says_so(fork_server: ForkServer, case: Case) -> None:
    result = run_group(fork_server, case.command("true", cpus=frozenset({4095})))
    assert result.exit_code == 126
    assert result.exits[0].reason == "cannot run on CPUs [4095]: Invalid argument"


def test_a_forked_worker_finds_its_own_surroundings(forking: ForkServer, case: Case) -> None:
    events: list[dict[str, Any]] = []
    specs = case.targets(
        "report",
        env={"TF_CONFIG": "{}", "BIG": "b" * 300_000},
        unset=("HOME",),
        payload={"text": "p" * 500_000},
        cpus=frozenset({min(os.sched_getaffinity(0))}),
    )
    result = run_group(forking, specs, on_event=lambda rank, event: events.append(event))
    assert result.exit_code == 0
    assert case.log().read_text() == "report of 0 é\n"
    assert events[0] == {"event": "ready", "replicas": 0}
    found = events[1]
    assert found["env"]["TF_CONFIG"] == "{}"
    assert len(found["env"]["BIG"]) == 300_000
    assert "HOME" in os.environ
    assert "HOME" not in found["env"]
    assert found["env"].get("OPENBLAS_NUM_THREADS") == os.environ.get("OPENBLAS_NUM_THREADS")
    assert found["payload_chars"] == 500_000
    assert found["collects"] is True  # off while the fork server imported
    assert found["cpus"] == [min(os.sched_getaffinity(0))]
    assert found["session"] is True
    assert found["name"] == "tfmp-worker-0"
    assert found["oom_score_adj"] == "200"
    # Nothing of the fork server's is open in a worker: only its own output and event pipes.
    assert found["stdin"] == "/dev/null"
    assert [fd.partition(":")[0] for fd in found["fds"]] == ["/dev/null", "/memfd", "pipe", "pipe", "pipe"]
    assert found["blocked"] == 0
    stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    assert [s for s in stop_signals if found["ignored"] >> (s - 1) & 1] == []


def test_a_target_that_raises_fails_with_its_traceback(forking: ForkServer, case: Case) -> None:
    events: list[tuple[int, dict[str, Any]]] = []
    result = run_group(forking, case.targets("fail"), on_event=lambda *event: events.append(event))
    assert result.exit_code == 1
    assert [rank for rank, _ in events] == [0]
    failed = events[0][1]
    assert (failed["event"], failed["type"], failed["message"]) == ("exception", "LookupError", "no such column: label")
    assert failed["reason"] == "LookupError: no such column: label"
    assert re.fullmatch(r"tests/cluster/launch_support\.py:\d+ in fail", failed["place"])
    assert result.tail(0)[0] == "Traceback (most recent call last):"
    assert result.tail(0)[-1] == "LookupError: no such column: label"


def test_both_ends_of_a_long_message_are_reported(forking: ForkServer, case: Case) -> None:
    events: list[dict[str, Any]] = []
    run_group(forking, case.targets("fail", payload={"chars": 9000}), on_event=lambda rank, event: events.append(event))
    message = events[0]["message"]
    assert len(message) <= 2003
    assert (message[:6], message[-4:]) == ("begin ", " end")


@pytest.mark.parametrize(
    ("left_with", "code", "text"), [(7, 7, ""), (None, 0, ""), (-1, 255, ""), ("no data", 1, "no data\n")]
)
def test_a_target_that_leaves_by_sys_exit(
    forking: ForkServer, case: Case, left_with: object, code: int, text: str
) -> None:
    result = run_group(forking, case.targets("leave", payload={"code": left_with}))
    assert (result.exit_code, case.log().read_text()) == (code, text)


def test_a_last_line_without_an_end_is_not_lost(forking: ForkServer, case: Case) -> None:
    result = run_group(forking, case.targets("mumble"))
    assert (result.exit_code, result.tail(0), case.log().read_text()) == (0, ["no newline"], "no newline")


def test_a_target_that_does_not_exist(forking: ForkServer, case: Case) -> None:
    result = run_group(forking, case.targets("no_such_function"))
    assert result.exit_code == 1
    assert "no_such_function" in result.tail(0)[-1]


def test_groups_follow_each_other_on_one_fork_server(forking: ForkServer, case: Case) -> None:
    for _ in range(3):
        assert run_group(forking, case.targets("die", 2, payload={"signum": 9})).exit_code == 137
        assert run_group(forking, case.targets("leave", 2, payload={"code": 0})).exit_code == 0


def test_an_exception_of_the_callers_ends_the_workers_not_the_fork_server(fork_server: ForkServer, case: Case) -> None:
    def on_line(rank: int, stream: str, text: str) -> None:
        raise BrokenPipeError("the console is gone")

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BrokenPipeError):
        run_group(fork_server, case.programs("print(i, flush=True); time.sleep(600)", 2), on_line=on_line)
    case.assert_nothing_left()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert run_group(fork_server, case.programs("pass")).exit_code == 0


def test_a_log_that_cannot_be_created_starts_nothing(fork_server: ForkServer, case: Case, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(TfmpError, match="cannot create a worker's log file"):
        run_group(fork_server, case.programs("time.sleep(600)", 2))
    assert case.leftovers() == []
    (tmp_path / "logs").unlink()
    assert run_group(fork_server, case.programs("pass")).exit_code == 0


def test_an_import_that_fails_shows_the_end_of_its_traceback() -> None:
    modules = ["tests.cluster.launch_support", "no_such_module_anywhere"]
    with ForkServer.start(modules, private_network="off") as fork_server, pytest.raises(TfmpError) as caught:
        fork_server.wait_ready(10)
    assert caught.value.what.endswith("ModuleNotFoundError: No module named 'no_such_module_anywhere'")
    assert not Path(f"/proc/{fork_server.pid}").exists()
