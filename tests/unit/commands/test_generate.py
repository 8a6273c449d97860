"""``tfmp generate``: the texts, what is refused, what is written and what is not."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tfmp import __version__
from tfmp.cli.app import _exit_code
from tfmp.deploy.deployment import DataFile, Deployment
from tfmp.deploy.files import compose, kubernetes, slurm

Generate = Callable[..., tuple[int, str, str]]

SLURM = """\
#!/bin/bash
# Submit this where tfmp is on the PATH, from a directory shared by all nodes:
#
#   sbatch job.sbatch
#
# A requeued job or a failed worker resumes from the last checkpoint. scancel saves one first.
# Made by: tfmp generate slurm my.yaml --workers 3 --cpus 2 --memory 3

#SBATCH --job-name=tfmp-my
#SBATCH --ntasks=3
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=1536M
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

export PYTHONUNBUFFERED=1
trap 'exit 143' TERM
for attempt in 0 1; do
    code=0
    srun --kill-on-bad-exit=1 --cpus-per-task=2 \\
        tfmp worker /a/my.yaml --set 'run.name=a b' --run-dir "runs/my-$SLURM_JOB_ID" --resume || code=$?
    case $code in
        0|2) exit $code ;;
    esac
done
exit $code
"""


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generate:
    """The command, in an empty folder: exit code, output, errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        code = _exit_code(["generate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_compose_file_of_the_project_is_what_its_heading_says(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "docker" / "compose.yaml"
    (command,) = [line for line in path.read_text().splitlines() if line.startswith("# Made by: ")]
    words = shlex.split(command.removeprefix("# Made by: tfmp "))
    assert words[:2] == ["generate", "compose"]
    monkeypatch.chdir(ROOT)
    before = path.read_text()
    try:
        assert _exit_code([*words, "--force"]) == 0
        assert path.read_text() == before, f"tfmp {shlex.join(words)} --force"
    finally:
        path.write_text(before)


def test_the_image_and_the_compose_file_name_this_version() -> None:
    assert f'image.version="{__version__}"' in (ROOT / "docker" / "Dockerfile").read_text()
    assert f'image: "tfmp:{__version__}"' in (ROOT / "docker" / "compose.yaml").read_text()


def test_a_compose_service_each_worker_with_limits_and_without_ways_in(generate: Generate, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("run: {max_restarts: 2, grace_period_s: 3.5}\n")
    code, out, _ = generate("compose", "my.yaml", "--workers", 2, "--cpus", 3, "--memory", 1.5, "--set", "run.name=a$b")
    assert (code, out) == (0, "wrote compose.yaml; the comment at the top explains how to start it\n")
    found = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    assert list(found["services"]) == ["worker-0", "worker-1"]
    addresses = "worker-0:2222,worker-1:2222"
    words = ["worker", "/config.yaml", "--set", "run.name=a$$b", "--workers", addresses, "--run-dir", "/runs/a-b"]
    assert found["services"]["worker-1"] == {
        "hostname": "worker-1",
        "image": f"tfmp:{__version__}",
        "command": [*words, "--resume"],
        "volumes": ["./my.yaml:/config.yaml:ro", "runs:/runs"],
        "networks": ["workers"],
        "restart": "on-failure:2",
        "stop_grace_period": "9s",
        "cpus": 3,
        "mem_limit": "1536m",
        "pids_limit": 1024,
        "shm_size": "256m",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    assert found["networks"] == {"workers": {"internal": True}}
    assert found["volumes"] == {"runs": {}}
    assert "ports" not in str(found)


def test_a_compose_file_without_a_configuration_restarts_or_data() -> None:
    text = compose(Deployment("mnist", 1, "tfmp generate compose --workers 1", max_restarts=0))
    found = yaml.safe_load(text)["services"]["worker-0"]
    assert found["command"] == ["worker", "--workers", "worker-0:2222", "--run-dir", "/runs/mnist", "--resume"]
    assert found["restart"] == "no"
    assert found["volumes"] == ["runs:/runs"]
    assert text.startswith("# 1 worker, one container each,")


def test_files_of_samples_are_mounted_and_named_anew() -> None:
    one = Deployment("d", 1, "", data=(DataFile("data.path", "/home/me/d.npz"),), own_code=("a.b:c",))
    text = compose(one)
    found = yaml.safe_load(text)["services"]["worker-0"]
    assert found["volumes"] == ["/home/me/d.npz:/data/home/me/d.npz:ro", "runs:/runs"]
    assert found["command"][1:3] == ["--set", "data.path=/data/home/me/d.npz"]
    assert "# Your own code must be importable there: a.b:c.\n" in text
    assert "# data.path must be at /home/me/d.npz in every pod: in the image or on a volume.\n" in kubernetes(one)


def test_the_image_is_built_where_a_folder_is_given(generate: Generate, tmp_path: Path) -> None:
    code, _, err = generate("compose", "--workers", 1, "--build", tmp_path)
    assert (code, err) == (
        2,
        f"error: expected a directory with docker/Dockerfile\n  where: --build {tmp_path}\n"
        "  try:   give tfmp's source directory, or build the image first and name it with --image\n",
    )
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").touch()
    assert generate("compose", "--workers", 1, "--build", ".", "--output", "a/b/c.yaml")[0] == 0
    found = yaml.safe_load((tmp_path / "a/b/c.yaml").read_text())["services"]["worker-0"]["build"]
    assert (found["context"], found["dockerfile"]) == ("../..", "docker/Dockerfile")
    assert generate("slurm", "--workers", 1, "--build", ".")[0] == 2


def test_a_batch_script() -> None:
    made_by = "tfmp generate slurm my.yaml --workers 3 --cpus 2 --memory 3"
    one = Deployment(
        "my", 3, made_by, config="/a/my.yaml", sets=("run.name=a b",), cpus=2, memory_gib=3, max_restarts=1
    )
    assert slurm(one) == SLURM
    done = subprocess.run(["bash", "-n"], input=slurm(one), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("codes", "expected", "attempts"),
    [("0", 0, 1), ("138 0", 0, 2), ("138 137 1", 1, 3), ("2", 2, 1), ("143 0", 0, 2)],
)
def test_a_batch_script_starts_the_group_again_where_that_may_help(
    tmp_path: Path, codes: str, expected: int, attempts: int
) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/bash\ncodes=({codes})\necho >>"{tmp_path}/calls"\n')
    with srun.open("a") as file:
        file.write(f'exit "${{codes[$(wc -l <"{tmp_path}/calls") - 1]}}"\n')
    srun.chmod(0o755)
    script = slurm(Deployment("my", 2, "", max_restarts=2))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (expected, "")
    assert len((tmp_path / "calls").read_text()) == attempts


def test_a_batch_script_that_is_told_to_stop_starts_nothing_more(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/bash\necho >>"{tmp_path}/calls"\nkill $PPID\nsleep 0.3\nexit 143\n')
    srun.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=slurm(Deployment("my", 2, "")), text=True, capture_output=True, env=env)
    assert done.returncode == 143
    assert len((tmp_path / "calls").read_text()) == 1


def test_a_job_of_kubernetes_lets_only_its_pods_reach_each_other(generate: Generate, tmp_path: Path) -> None:
    (tmp_path / "My Model.yaml").write_text("# hello\nrun:\n  max_restarts: 2\n\n")
    code, out, _ = generate("kubernetes", "My Model.yaml", "--workers", 3, "--image", "here/tfmp:7", "--output", "-")
    assert code == 0
    parts = {one["kind"]: one for one in yaml.safe_load_all(out)}
    assert list(parts) == ["ConfigMap", "Service", "NetworkPolicy", "PersistentVolumeClaim", "Job"]
    assert {one["metadata"]["name"] for one in parts.values()} == {"tfmp-my-model"}
    assert parts["ConfigMap"]["data"] == {"config.yaml": "# hello\nrun:\n  max_restarts: 2\n"}
    service = parts["Service"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    same = [{"podSelector": {"matchLabels": {"app": "tfmp-my-model"}}}]
    policy = parts["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == same[0]["podSelector"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"from": same, "ports": [{"protocol": "TCP", "port": 2222}]}]
    names = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    assert policy["egress"] == [{"to": same, "ports": [{"protocol": "TCP", "port": 2222}]}, {"ports": names}]
    job = parts["Job"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimit"]) == ("Indexed", 3, 3, 6)
    pod = job["template"]["spec"]
    assert (pod["subdomain"], pod["restartPolicy"]) == ("tfmp-my-model", "Never")
    assert job["template"]["metadata"]["labels"] == service["selector"]
    (container,) = pod["containers"]
    assert container["image"] == "here/tfmp:7"
    words = "worker /config.yaml --workers 3 --cluster kubernetes --run-dir /runs/My-Model --resume"
    assert container["args"] == words.split()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_configuration_that_no_block_can_hold_is_quoted() -> None:
    text = ' a: "\t"\n\n'
    found = next(yaml.safe_load_all(kubernetes(Deployment("n", 1, "", config="c", config_text=text))))
    assert found["data"]["config.yaml"] == text


def test_a_file_is_overwritten_by_force_only(generate: Generate, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("mine")
    code, out, err = generate("slurm", "--workers", 2)
    assert (code, out) == (2, "")
    assert err == (
        "error: the file already exists\n  where: job.sbatch\n"
        "  try:   use --force to overwrite it, or --output to choose another\n"
    )
    assert (tmp_path / "job.sbatch").read_text() == "mine"
    assert generate("slurm", "--workers", 2, "--force")[0] == 0
    assert "#SBATCH --ntasks=2\n" in (tmp_path / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("compose",), "--workers"),
        (("compose", "--workers", "0"), "0"),
        (("swarm", "--workers", "2"), "swarm"),
        (("slurm", "no.yaml", "--workers", "2"), "no.yaml"),
        (("slurm", "--workers", "4", "--set", "training.batch_size=2"), "training.batch_size"),
        (("slurm", "--workers", "1", "--set", "cluster.strategy=mirrored"), "cluster.strategy"),
        (("compose", "--workers", "2", "--set", "cluster.base_port=9"), "cluster.base_port"),
        (("compose", "--workers", "2", "--set", "cluster.token=sesame"), "--set cluster.token"),
        (("compose", "--workers", "2", "--output", "/dev/null/x"), "/dev/null/x"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    generate: Generate, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = generate(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "sesame" not in err
    assert not list(tmp_path.iterdir())


def test_a_secret_goes_into_no_config_map(generate: Generate, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("cluster: {token: sesame}\n")
    code, out, err = generate("kubernetes", "my.yaml", "--workers", 2, "--output", "-")
    assert (code, out) == (2, "")
    assert "a secret must not be in a ConfigMap" in err
    assert "sesame" not in err
    assert generate("compose", "my.yaml", "--workers", 2)[0] == 0
    assert "sesame" not in (tmp_path / "compose.yaml").read_text()


def test_a_configuration_that_the_container_cannot_read_is_warned_of(generate: Generate, tmp_path: Path) -> None:
    path: Any = tmp_path / "my.yaml"
    path.write_text("run: {name: x}\n")
    path.chmod(0o600)
    assert generate("compose", "my.yaml", "--workers", 1)[2] == (
        "warning: the container's user cannot read my.yaml: run chmod o+r my.yaml\n"
    )
