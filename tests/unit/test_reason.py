"""The innermost reason of exceptions as TensorFlow 2.21 and Keras 3.15 word them."""

from __future__ import annotations

import pytest

from tfmp.reason import reason_of

KERAS = "/usr/lib/python3/site-packages/keras/src/utils/traceback_utils.py"
TRACED = """in user code:

    File "{tfmp}/distribute/step.py", line 75, in gradients  *
        y_pred = keras_hooks.call_model(model, x, training=True)
    File "/home/me/mymodel.py", line 18, in call
        return keras.ops.matmul(x, keras.ops.ones((3, 3)))

    ValueError: Exception encountered when calling L3.call().
    
    \x1b[1mDimensions must be equal, but are 784 and 3.\x1b[0m
    
    Arguments received by L3.call():
      • x=tf.Tensor(shape=(128, 784), dtype=float32)
      • training=True
"""  # noqa: W293
TWICE = """in user code:

    File "/home/me/a.py", line 1, in outer  *
        inner()
    File "/home/me/a.py", line 5, in inner  *
        raise KeyError("x")

    KeyError: in user code:
    
        File "/home/me/a.py", line 9, in innermost  *
            x[0]
    
        my_package.MyError: no such thing: 7
"""  # noqa: W293
INFERRED = """Exception encountered when calling Bad.call().

\x1b[1mCould not automatically infer the output shape / dtype of 'bad' (of type Bad). Either \
the `Bad.call()` method is incorrect, or \
you need to implement the `Bad.compute_output_spec() / compute_output_shape()` method. Error encountered:

Dimensions must be equal, but are 4 and 3.\x1b[0m

Arguments received by Bad.call():
  • args=('<KerasTensor shape=(None, 4)>',)
  • kwargs=<class 'inspect._empty'>"""
GRAPH = """Graph execution error:

Detected at node sequential_1/embedding_1/GatherV2 defined at (most recent call last):
  File "/home/me/train.py", line 11, in <module>

  File "{lib}/keras/src/layers/core/embedding.py", line 196, in call

indices[0,2] = 3 is not in [0, 3)
\t [[{{{{node sequential_1/embedding_1/GatherV2}}}}]] [Op:__inference_multi_step_on_iterator_310]"""


def filled(text: str) -> str:
    import sysconfig
    from pathlib import Path

    import tfmp

    return text.replace("{tfmp}", str(Path(tfmp.__file__).parent)).replace("{lib}", sysconfig.get_path("purelib"))


@pytest.mark.parametrize(
    ("message", "type_", "text", "place"),
    [
        (TRACED, "ValueError", "L3.call(): Dimensions must be equal, but are 784 and 3.",
         "/home/me/mymodel.py:18 in call"),
        (TWICE, "MyError", "no such thing: 7", "/home/me/a.py:9 in innermost"),
        (INFERRED, "RuntimeError", "Bad.call(): Dimensions must be equal, but are 4 and 3.", None),
        (GRAPH.replace("{{{{", "{{").replace("}}}}", "}}"), "RuntimeError", "indices[0,2] = 3 is not in [0, 3)",
         "/home/me/train.py:11 in <module>"),
        ("something else\nin two lines", "RuntimeError", "something else\nin two lines", None),
        ("in user code:\n\n    unknown", "RuntimeError", "in user code:\n\n    unknown", None),
        ("", "RuntimeError", "", None),
    ],
    ids=["traced", "traced twice", "shape", "graph", "plain", "unknown", "empty"],
)  # fmt: skip
def test_reason(message: str, type_: str, text: str, place: str | None) -> None:
    assert reason_of(RuntimeError(filled(message))) == (type_, text, place)


def test_the_place_is_the_innermost_line_of_ones_own() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _divide()
    reason = reason_of(caught.value)
    assert reason[:2] == ("ZeroDivisionError", "division by zero")
    assert reason.place is not None
    assert reason.place.startswith("tests/unit/test_reason.py:")
    assert reason.place.endswith(" in _divide")


def _divide() -> float:
    return 1 / 0
