"""Data of any kind given to ``fit`` on two workers: plain Keras's numbers, or a refusal by name on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.train.conftest import mirrored
from tfmp.distribute.share import batch_of, fingerprint, share

_PROGRAM = Path(__file__).parent / "programs" / "data_cases.py"


def _run(*command: str) -> dict[tuple[int, str], Any]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.partition("CASE ")[2] for line in done.stdout.splitlines() if "CASE " in line]
    return {(rank, name): found for rank, name, found in map(json.loads, lines)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[int, str], Any], dict[tuple[int, str], Any]]:
    """What every case came to in one process, and on two workers."""
    folder = str(tmp_path_factory.mktemp("records"))
    plain = _run(str(_PROGRAM), "plain", folder)
    launch = ("-m", "tfmp", "launch", "-n", "2", "--", sys.executable, str(_PROGRAM), "workers", folder)
    return plain, _run(*launch)


@pytest.mark.parametrize("name", ["records", "changing sizes", "words"])
@pytest.mark.timeout(480)
def test_numbers_are_those_of_plain_keras(name: str, outcomes: Any) -> None:
    plain, workers = outcomes
    for rank in range(2):
        assert not isinstance(workers[rank, name], str), workers[rank, name]
        for one, other in zip(plain[0, name], workers[rank, name], strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(b, a, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("own order", "TfmpError: worker 0 and worker 1 read different batches up to step 1: some samples would be "
         "seen twice, others never"),
        ("weights of the chief", "TfmpError: worker 0 and worker 1 begin with different values of sequential"),
        ("stateful", "TfmpError: layer 'lstm' is stateful: its state is for 8 rows, a replica has 4"),
        ("class weight", "TfmpError: class_weight needs the labels, which a distributed data set does not show"),
    ],
)  # fmt: skip
@pytest.mark.timeout(480)
def test_what_cannot_be_exact_is_refused_on_every_worker(name: str, refusal: str, outcomes: Any) -> None:
    for rank in range(2):
        assert str(outcomes[1][rank, name]).startswith(refusal)


def test_rows_of_every_kind_are_shared_in_order_and_once() -> None:
    strategy = mirrored(3)
    dense = np.arange(14).reshape(7, 2)
    data = tf.data.Dataset.from_tensors(
        {
            "dense": dense,
            "ragged": tf.ragged.constant([[i] * i for i in range(7)]),
            "sparse": tf.sparse.from_dense(dense),
            "text": [str(i) for i in range(7)],
        }
    )
    elements = [strategy.experimental_local_results(element) for element in share(data, strategy)]
    assert len(elements) == 1
    parts = [batch_of(part) for part in elements[0]]
    assert [len(part["text"]) for part in parts] == [3, 2, 2]
    assert np.concatenate([part["dense"] for part in parts]).tolist() == dense.tolist()
    assert [row for part in parts for row in part["ragged"].to_list()] == [[i] * i for i in range(7)]
    assert np.concatenate([tf.sparse.to_dense(part["sparse"]) for part in parts]).tolist() == dense.tolist()
    assert [text for part in parts for text in part["text"].numpy()] == [str(i).encode() for i in range(7)]


def test_a_fingerprint_sees_every_value_and_the_order() -> None:
    batch = {"a": tf.constant([[1.0, 2.0]]), "b": tf.constant(["x"])}
    same = {"a": tf.constant([[1.0, 2.0]]), "b": tf.constant(["x"])}
    others = [
        {"a": tf.constant([[2.0, 1.0]]), "b": tf.constant(["x"])},
        {"a": tf.constant([[1.0, 2.0]]), "b": tf.constant(["y"])},
        {"a": tf.constant([[1.0], [2.0]]), "b": tf.constant(["x"])},
    ]
    assert int(fingerprint(batch)) == int(fingerprint(same))
    assert len({int(fingerprint(other)) for other in [batch, *others]}) == 4
