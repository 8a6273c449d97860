"""Workers in a network of their own: each reaches the other, nobody outside reaches them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.launch_support import Case, run_group
from tfmp.workers.fork_client import ForkServer

SERVE = (
    "import socket\n"
    "if i == 0:\n"
    "    s = socket.create_server(('0.0.0.0', 39417)); print('serving', flush=True)\n"
    "    s.settimeout(10); s.accept()[0].sendall(b'hello'); time.sleep(0.5)\n"
    "else:\n"
    "    while True:\n"
    "        try: print(socket.create_connection(('127.0.0.1', 39417), 2).recv(5)); break\n"
    "        except ConnectionRefusedError: time.sleep(0.02)\n"
)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.start(private_network="auto") as fork_server:
        ready = fork_server.wait_ready(10)
        assert ready is not None
        if not ready.private_network:
            assert subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0
            pytest.skip(f"no private network here: {ready.network_note}")
        yield fork_server


def test_workers_meet_inside_and_are_refused_outside(fork_server: ForkServer, tmp_path: Path) -> None:
    outside: list[int] = []

    def on_line(rank: int, stream: str, text: str) -> None:
        if text == "serving":
            with socket.socket() as client:
                outside.append(client.connect_ex(("127.0.0.1", 39417)))

    result = run_group(fork_server, Case(tmp_path).programs(SERVE, 2), on_line=on_line)
    assert result.exit_code == 0
    assert result.tail(1) == ["b'hello'"]
    assert outside == [111]  # refused


def test_off_leaves_the_network_alone(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with ForkServer.start(private_network="off") as fork_server:
        result = run_group(fork_server, case.programs("print(os.readlink('/proc/self/ns/net'))"))
        assert result.tail(0) == [str(Path("/proc/self/ns/net").readlink())]
        assert fork_server.ready is not None
        assert (fork_server.ready.private_network, fork_server.ready.network_note) == (False, "not asked for")


ORDINARY_USER = """
import ctypes, os
from tfmp.workers import private_net
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self is still root's, as it is not after an exec
reason = private_net.refusal()
if reason: print('refused:', reason)
else: private_net.enter(); print('private', os.getuid(), os.getgid())
"""


def in_a_process(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=10)
    return run.stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_gets_one_too_and_stays_himself() -> None:
    answer = in_a_process(ORDINARY_USER)
    if answer.startswith("refused:"):
        probe = ["unshare", "--user", "--net", "true"]
        assert subprocess.run(probe, user=65534, group=65534, extra_groups=[], check=False).returncode != 0
        pytest.skip(answer)
    assert answer == "private 65534 65534"


LIMITED = """
import ctypes, os
from tfmp.errors import TfmpError
from tfmp.workers.fork_client import ForkServer
uid = os.getuid()
if ctypes.CDLL(None).unshare(0x10000000): raise SystemExit('refused')
open('/proc/self/uid_map', 'w').write(f'0 {uid} 1')
open('/proc/sys/user/max_net_namespaces', 'w').write('0')
with ForkServer.start() as fork_server: print(fork_server.wait_ready(5).network_note)
with ForkServer.start(private_network='on') as fork_server:
    try: fork_server.wait_ready(5)
    except TfmpError as error: print(error.what)
"""


def test_a_refusal_is_explained_and_on_insists() -> None:
    """With the limit of network namespaces at zero, as an administrator sets it."""
    try:
        answer = in_a_process(LIMITED).splitlines()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no user namespace with limits of its own here: {error.stderr.splitlines()[-1]}")
    reason = "the limit of namespaces is reached (/proc/sys/user/max_net_namespaces, max_user_namespaces)"
    assert answer == [reason, f"a private network for the workers was asked for and refused: {reason}"]
