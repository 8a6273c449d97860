"""TensorFlow's server has no authentication: that of local workers is reached by nobody outside, whoever runs them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.cluster.worker_support import LONG
from tests.conftest import ROOT

_NOBODY = 65534
_PATH = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])


def _outcomes(
    folder: Path, private_network: str, python: str = sys.executable, user: int | None = None
) -> tuple[list[int], str]:
    """Train with two workers over gRPC; return what connecting to the port of each comes to, and the output."""
    run, out = folder / "run", folder / "out.txt"
    more = ("--workers", "2", "--collective", "ring", "--set", f"cluster.private_network={private_network}")
    with out.open("wb") as file:
        process = subprocess.Popen(
            [python, "-m", "tfmp", "train", *LONG, *more, "--run-dir", str(run)],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _PATH, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    try:
        deadline_s = time.monotonic() + 90
        while "epoch 2/" not in out.read_text():
            assert time.monotonic() < deadline_s, out.read_text()
            assert process.poll() is None, out.read_text()
            time.sleep(0.1)
        start = next(line for line in (run / "events.jsonl").read_text().splitlines() if '"event": "start"' in line)
        ports = sorted(set(map(int, re.findall(r"127\.0\.0\.1:(\d+)", start))))
        assert len(ports) == 2, start
        found = []
        for port in ports:
            with socket.socket() as client:
                client.settimeout(5)
                found.append(client.connect_ex(("127.0.0.1", port)))
        assert process.poll() is None, "still training"
        return found, out.read_text()
    finally:
        process.kill()
        process.wait(10)


def test_the_port_is_refused_from_outside_and_only_there_where_the_network_is_private(tmp_path: Path) -> None:
    found, text = _outcomes(tmp_path, "auto")
    if "network is not private" in text:
        pytest.skip(text)
    assert found == [errno.ECONNREFUSED, errno.ECONNREFUSED]


def test_without_a_private_network_the_port_is_open_and_that_is_said(tmp_path: Path) -> None:
    found, text = _outcomes(tmp_path, "off")
    assert found == [0, 0]
    assert "warning: the workers' network is not private: as asked (cluster.private_network)" in text


def _python_for_all() -> str:
    """A Python of this version that an ordinary user may run too: root's own may lie where nobody else may look."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        with contextlib.suppress(OSError):
            code, env = "import numpy, yaml, tfmp.cli", {"PYTHONPATH": _PATH, "PYTHONDONTWRITEBYTECODE": "1"}
            asked = subprocess.run(
                [python, "-c", code],
                env=env,
                cwd=ROOT,
                user=_NOBODY,
                group=_NOBODY,
                extra_groups=[],
                capture_output=True,
            )
            if asked.returncode == 0:
                return python
    pytest.skip("no Python that an ordinary user may run, too")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_has_one_too(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.chown(tmp_path, _NOBODY, _NOBODY)
    found, text = _outcomes(tmp_path, "auto", _python_for_all(), _NOBODY)
    if "network is not private" in text:
        pytest.skip(text)
    assert found == [errno.ECONNREFUSED, errno.ECONNREFUSED]
    assert json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])["event"]
