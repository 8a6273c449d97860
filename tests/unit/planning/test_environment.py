"""The environment of the fork server, thread and proxy variables."""

from __future__ import annotations

import pytest

from tfmp.planning.environment import fork_server_environment, no_proxy_env, thread_env

THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def test_the_environment_is_put_right_and_said() -> None:
    user = {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1", "HOME": "/h"}
    env, notices = fork_server_environment(user, {"OMP_NUM_THREADS": "2", "TF_CONFIG": "x"}, verbose=False)
    assert env == {"KERAS_BACKEND": "tensorflow", "HOME": "/h", "TF_CPP_MIN_LOG_LEVEL": "1", "OMP_NUM_THREADS": "2"}
    assert len(notices) == 2
    assert user["KERAS_BACKEND"] == "torch"
    env, notices = fork_server_environment({"TF_CPP_MIN_LOG_LEVEL": "0"}, {}, verbose=False)
    assert (env["TF_CPP_MIN_LOG_LEVEL"], notices) == ("0", [])
    assert "TF_CPP_MIN_LOG_LEVEL" not in fork_server_environment({}, {}, verbose=True)[0]


def test_cores_are_shared_out_among_the_local_workers() -> None:
    assert thread_env(16, 4, {}) == dict.fromkeys(THREADS, "4")
    assert thread_env(16, 3, {}) == dict.fromkeys(THREADS, "5")
    assert thread_env(2, 8, {}) == dict.fromkeys(THREADS, "1")


def test_the_users_thread_variables_are_kept() -> None:
    assert thread_env(16, 4, {"OMP_NUM_THREADS": "3", "TF_NUM_INTEROP_THREADS": ""}) == {
        "OMP_NUM_THREADS": "3",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
    }


def test_an_explicit_thread_count_beats_the_environment() -> None:
    assert thread_env(16, 4, {"OMP_NUM_THREADS": "3"}, threads_per_worker=2) == dict.fromkeys(THREADS, "2")


def test_without_a_proxy_nothing_is_set() -> None:
    assert no_proxy_env({"no_proxy": "corp.example", "http_proxy": ""}, ["h0"]) == {}


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTPS_PROXY"])
def test_every_host_of_the_cluster_bypasses_the_proxy(name: str) -> None:
    expected = "h0,10.0.0.1,fe80::1,127.0.0.1,localhost,::1"
    assert no_proxy_env({name: "http://127.0.0.1:9"}, ["h0", "10.0.0.1", "[fe80::1]", "h0"]) == {
        "no_proxy": expected,
        "NO_PROXY": expected,
    }


def test_the_users_exceptions_are_kept_in_front() -> None:
    environ = {"http_proxy": "p", "no_proxy": "corp.example, localhost", "NO_PROXY": "x", "no_grpc_proxy": "y"}
    merged = "corp.example,localhost,x,y,h0,127.0.0.1,::1"
    assert no_proxy_env(environ, ["h0"]) == {"no_proxy": merged, "NO_PROXY": merged, "no_grpc_proxy": merged}
