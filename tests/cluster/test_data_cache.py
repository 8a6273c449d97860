"""The cache of prepared data sets between processes: killed, at once, in a folder of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.unit.data.test_cache import Data, assert_right, data, names
from tfmp.data.cache import prepare

__all__ = ["data"]  # the fixture


def run_python(data: Data, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(data, code), capture_output=True, text=True, timeout=30)


def command(data: Data, code: str) -> list[str]:
    fields = {name: str(value) for name, value in vars(data).items() if value is not None}
    start = (
        "import types; from tfmp.data.cache import prepare\n"
        f"data = types.SimpleNamespace(**dict.fromkeys({list(vars(data))!r}))\n"
        f"data.__dict__.update({fields!r})\n"
    )
    return [sys.executable, "-c", start + code]


def test_private_folder_goes_with_the_process(data: Data) -> None:
    code = "print(prepare(data, print).path)"
    output = run_python(replace(data, cache_dir=Path("/proc/tfmp-cache")), code).stdout.splitlines()
    assert len(output) == 2
    assert not Path(output[1]).parent.exists()


def test_maker_killed_while_writing_leaves_no_broken_entry(data: Data) -> None:
    # The kernel kills the process in the middle of its write, at the size limit.
    kill = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "prepare(data)\n"
    )
    assert run_python(data, kill).returncode == -signal.SIGXFSZ
    assert data.cache_dir is not None
    assert names(data.cache_dir) == [".bin", ".lock"]
    assert len(list(data.cache_dir.glob(".*.tmp.bin"))) == 1
    notices: list[str] = []
    assert_right(prepare(data, notices.append), data)
    assert notices == []
    assert names(data.cache_dir) == [".bin", ".json", ".lock"]


def test_two_makers_at_once_make_one_entry(data: Data) -> None:
    code = "entry = prepare(data, print); print(entry.data_path.stat().st_ino, entry.header.data_sha256)"
    makers = [subprocess.Popen(command(data, code), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {maker.communicate(timeout=30)[0].splitlines()[-1] for maker in makers}
    assert [maker.returncode for maker in makers] == [0, 0]
    assert len(outputs) == 1
    assert names(data.cache_dir) == [".bin", ".json", ".lock"]


def test_a_prepared_data_set_is_found_without_numpy(data: Data) -> None:
    prepare(data)
    result = run_python(data, "import sys; print(prepare(data).header.train_samples, 'numpy' in sys.modules)")
    assert result.stdout == "100 False\n"
