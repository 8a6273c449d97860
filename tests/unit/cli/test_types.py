"""Lists on the command line."""

from __future__ import annotations

import click
import pytest

from tfmp.cli.types import numbers, words


def test_numbers_are_sorted() -> None:
    assert numbers()("2048, 32,256") == (32, 256, 2048)
    assert numbers(64)("64") == (64,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("65", "expected whole numbers from 1 to 64, separated by commas; received '65' in '65'"),
        ("1,,2", "expected whole numbers from 1 to 64, separated by commas; received '' in '1,,2'"),
        ("0", "expected whole numbers from 1 to 64, separated by commas; received '0' in '0'"),
        ("1,²", "expected whole numbers from 1 to 64, separated by commas; received '²' in '1,²'"),
        ("2,1,2", "expected each value once; received 2 twice"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        numbers(64)(text)
    assert caught.value.message == message


def test_words_keep_their_order() -> None:
    word_list = words("shm", "ring", "auto")
    assert word_list("shm, auto") == ("shm", "auto")
    with pytest.raises(
        click.BadParameter, match="expected any of shm, ring, auto, separated by commas; received 'rign'"
    ):
        word_list("shm,rign")
    with pytest.raises(click.BadParameter, match="received ring twice"):
        word_list("ring,ring")
