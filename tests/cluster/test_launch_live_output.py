"""Output of real workers: at once, in whole lines, to the last word, whatever its size."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.launch_support import Case, run_group, run_launcher
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.group import WorkerGroup


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.start(["tests.cluster.launch_support"], private_network="off") as fork_server:
        yield fork_server


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end_leftovers()


def test_a_print_passes_two_pipes_at_once(case: Case) -> None:
    """No worker flushes; the launcher's own output is a pipe too."""
    began_s = time.monotonic()
    launcher = run_launcher(
        case,
        "with ForkServer.start() as fork_server:\n"
        "    run_group(fork_server, case.programs(\"print('hello'); time.sleep(600)\", 2),\n"
        "              on_line=lambda rank, stream, text: print(f'[{rank}] {text}', flush=True))",
    )
    assert launcher.stdout is not None
    assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[0] hello\n", "[1] hello\n"]
    assert time.monotonic() - began_s <= 2
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=5)
    case.assert_nothing_left()


def test_lines_of_noisy_workers_stay_whole(fork_server: ForkServer, case: Case) -> None:
    lines: list[tuple[int, str]] = []
    code = "for n in range(3000): sys.stdout.write(f'{i}-{n}-' + chr(97 + i) * (n % 90) + '\\n')"
    result = run_group(
        fork_server, case.programs(code, 4), on_line=lambda rank, stream, text: lines.append((rank, text))
    )
    assert result.exit_code == 0
    for rank in range(4):
        expected = [f"{rank}-{n}-" + chr(97 + rank) * (n % 90) for n in range(3000)]
        assert [text for r, text in lines if r == rank] == expected
        assert case.log(rank).read_text().splitlines() == expected
        assert result.tail(rank) == expected[-20:]


def test_the_last_words_of_a_killed_worker_are_kept(fork_server: ForkServer, case: Case) -> None:
    lines: list[str] = []
    result = run_group(fork_server, case.targets("die"), on_line=lambda rank, stream, text: lines.append(text))
    assert result.exit_code == 137
    assert lines == result.tail(0) == ["step 41", "step 42"]
    assert case.log().read_bytes() == b"step 41\nstep 42"


def test_a_fault_in_native_code_leaves_a_stack(fork_server: ForkServer, case: Case) -> None:
    result = run_group(fork_server, case.targets("die", payload={"signum": int(signal.SIGSEGV)}))
    assert result.exit_code == 139
    assert "Fatal Python error: Segmentation fault" in case.log().read_text()
    assert any("launch_support.py" in line and line.endswith(" in die") for line in result.tail(0))


def test_sigusr1_shows_where_a_target_is(fork_server: ForkServer, case: Case) -> None:
    def on_tick(group: WorkerGroup) -> None:
        if stack := group.stacks().get(0):
            stacks.append(stack)
            group.stop("seen")
        else:
            group.request_stacks()

    stacks: list[str] = []
    ready: list[int] = []
    run_group(
        fork_server,
        case.targets("ready_but_one", payload={"silent": -1}),
        on_event=lambda rank, event: ready.append(rank),
        on_tick=lambda group: on_tick(group) if ready else None,
        tick_s=0.05,
    )
    assert stacks[0].startswith("Current thread")
    assert any(line.endswith(" in ready_but_one") for line in stacks[0].splitlines())
    assert case.log().read_bytes() == b"", "stacks have a file of their own"


def test_bytes_that_are_no_text_and_a_line_of_10_mb(fork_server: ForkServer, case: Case) -> None:
    lines: list[str] = []
    code = "o = sys.stdout.buffer; o.write(b'\\xff\\xfe\\n10%\\r100%\\n' + b'x' * 10_000_000 + b'\\nend\\n')"
    result = run_group(fork_server, case.programs(code), on_line=lambda rank, stream, text: lines.append(text))
    assert result.exit_code == 0
    assert case.log().read_bytes() == b"\xff\xfe\n10%\r100%\n" + b"x" * 10_000_000 + b"\nend\n"
    assert lines[:2] == ["\ufffd\ufffd", "100%"]
    assert "".join(lines[2:-1]) == "x" * 10_000_000
    assert lines[-1] == "end"


def test_much_output_does_not_grow_the_launcher(fork_server: ForkServer, case: Case) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "line = b'z' * 1023 + b'\\n'\nfor _ in range(80): sys.stdout.buffer.write(line * 1024)"
    result = run_group(fork_server, case.programs(code), on_line=lambda rank, stream, text: None)
    assert result.exit_code == 0
    assert case.log().stat().st_size == 80 * 2**20
    case.log().unlink()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 16 * 1024


def test_a_daemon_that_writes_for_ever_holds_nobody(fork_server: ForkServer, case: Case) -> None:
    """It keeps the pipe of a worker that is gone open, in a session of its own, while another worker lives."""
    daemon = "subprocess.Popen(['yes'], start_new_session=True); print('first') if i == 0 else time.sleep(0.3)"
    code = daemon.replace("subprocess", "i or subprocess", 1)
    result = run_group(fork_server, case.programs(code, 2))
    assert result.exit_code == 0
    assert result.exits[0].seconds < result.exits[1].seconds
    case.assert_nothing_left()


def test_a_full_disk_does_not_end_the_run(fork_server: ForkServer, case: Case) -> None:
    lines: list[tuple[str, str]] = []
    case.log().parent.mkdir(parents=True)
    case.log().symlink_to("/dev/full")
    code = "print('one'); time.sleep(0.1); print('two')"
    result = run_group(fork_server, case.programs(code), on_line=lambda rank, *line: lines.append(line))
    assert result.exit_code == 0
    trouble = f"cannot write {case.log()}: No space left on device; the run goes on without it"
    assert lines == [("tfmp", trouble), ("stdout", "one"), ("stdout", "two")]
