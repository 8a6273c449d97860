"""The environment that workers are started in."""

from __future__ import annotations

from tfmp.planning.environment import fork_server_environment


def test_the_environment_is_put_right_and_said() -> None:
    user = {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1", "HOME": "/h"}
    env, notices = fork_server_environment(user, {"OMP_NUM_THREADS": "2", "TF_CONFIG": "x"}, verbose=False)
    assert env == {"KERAS_BACKEND": "tensorflow", "HOME": "/h", "TF_CPP_MIN_LOG_LEVEL": "1", "OMP_NUM_THREADS": "2"}
    assert len(notices) == 2
    assert user["KERAS_BACKEND"] == "torch"
    env, notices = fork_server_environment({"TF_CPP_MIN_LOG_LEVEL": "0"}, {}, verbose=False)
    assert (env["TF_CPP_MIN_LOG_LEVEL"], notices) == ("0", [])
    assert "TF_CPP_MIN_LOG_LEVEL" not in fork_server_environment({}, {}, verbose=True)[0]
