"""A configuration file that cannot mean what it says is refused with its line and column, and runs no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfmp.config.loader import MAX_FILE_BYTES, Entry, load_yaml, parse_value
from tfmp.config.types import Scalar
from tfmp.errors import UsageError


def load(tmp_path: Path, content: str | bytes) -> dict[str, Entry]:
    file = tmp_path / "run.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_yaml(file)


def refusal(tmp_path: Path, content: str | bytes) -> tuple[str, str, str]:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, content)
    assert caught.value.exit_code == 2
    where = (caught.value.where or "").removeprefix(f"{tmp_path}/run.yaml")
    return caught.value.what, where, caught.value.hint or ""


def test_keys_and_values_keep_their_lines_and_spelling(tmp_path: Path) -> None:
    loaded = load(tmp_path, "# a comment\nrun:\n  name: 3.10\n  dir: 'off'\nmodel:\n  units:\n  - 64\n  - 1e1\n")
    assert [(key, entry.line) for key, entry in loaded.items()] == [("run", 2), ("model", 5)]
    run, model = loaded["run"].value, loaded["model"].value
    assert isinstance(run, dict)
    assert run["name"] == Entry(Scalar("3.10", "plain"), 3)
    assert run["dir"] == Entry(Scalar("off", "quoted"), 4)
    assert isinstance(model, dict)
    units = model["units"].value
    assert isinstance(units, list)
    assert units == [Scalar("64"), Scalar("1e1")]
    assert [item.line for item in units if isinstance(item, Scalar)] == [7, 8]


@pytest.mark.parametrize(
    ("content", "what", "where"),
    [
        ("", "expected settings, received an empty file", ""),
        ("# only a comment\n", "expected settings, received an empty file", ""),
        ("- a\n- b\n", "expected a mapping of sections at the top level, received a list of 2", ":1"),
        ("train\n", "expected a mapping of sections at the top level, received train", ":1"),
        ("training:\n\tepochs: 3\n", "expected spaces, received a tab", ":2:1"),
        ("training:\n  units: [1, 2\nrun: {}\n", "this bracket is not closed", ":2:10"),
        ("training: {epochs: 3", "this bracket is not closed", ":1:11"),
        ("run:\n  name: 'a\n", "this quote is not closed", ":2:9"),
        ("a: b: c\n", "mapping values are not allowed here", ":1:5"),
        ("a: 1\na: 2\n", "duplicate key a, first on line 1", ":2:1"),
        ("t:\n  b: 3\n  c: 1\n  b: 3\n", "duplicate key b, first on line 2", ":4:3"),
        ("---\na: 1\n---\nb: 2\n", "expected one document, received a second", ":3:1"),
        ("a: !!str 5\n", "tags are not supported, received tag:yaml.org,2002:str", ":1:4"),
        ("a: !mine 5\n", "tags are not supported, received !mine", ":1:4"),
        ("? [a]\n: 1\n", "expected a key, received a list or mapping", ":1:3"),
        ("a: &x [*x]\n", "this value contains an alias of itself", ":1:4"),
        ("a: *nowhere\n", "found undefined alias 'nowhere'", ":1:4"),
        ("a: 1\nb: \x07\n", r"expected text, received the character '\x07'", ":2:4"),
        (b"a: 1\nb: caf\xe9\n", "expected UTF-8 text, received the byte 0xe9", ":2:7"),
        ("a: 1\n".encode("utf-16"), "expected UTF-8 text, received the byte 0xff", ":1:1"),
        ("<<: 3\n", "expected a mapping to merge, received 3", ":1:5"),
        ("[" * 50, "expected at most 20 levels of nesting", ":1:21"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_at_its_place(
    tmp_path: Path, content: str | bytes, what: str, where: str
) -> None:
    assert refusal(tmp_path, content)[:2] == (what, where)


def test_no_code_is_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    what, where, _ = refusal(tmp_path, f'run:\n  name: !!python/object/apply:os.system ["touch {proof}"]\n')
    assert what == "tags are not supported, received tag:yaml.org,2002:python/object/apply:os.system"
    assert where == ":2:9"
    assert not proof.exists()


def test_missing_files_directories_and_large_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as missing:
        load_yaml(tmp_path / "run.yaml")
    assert missing.value.where == f"{tmp_path}/run.yaml"
    (tmp_path / "run.yml").write_text("run: {}\n")
    with pytest.raises(UsageError, match="does not exist") as missing:
        load_yaml(tmp_path / "run.yaml")
    assert missing.value.hint == f"did you mean {tmp_path}/run.yml?"
    with pytest.raises(UsageError, match="received a directory") as directory:
        load_yaml(tmp_path)
    assert directory.value.hint == "give a YAML file"
    (tmp_path / "config.yaml").write_text("run: {}\n")
    with pytest.raises(UsageError, match="received a directory") as directory:
        load_yaml(tmp_path)
    assert directory.value.hint == f"did you mean {tmp_path}/config.yaml?"
    assert refusal(tmp_path, b"#" * (MAX_FILE_BYTES + 1))[0].startswith("expected a configuration of at most 256 KiB")
    with pytest.raises(UsageError, match="cannot read"):
        load_yaml(Path("a\0b"))


def test_a_byte_order_mark_and_windows_line_ends_are_harmless(tmp_path: Path) -> None:
    loaded = load(tmp_path, b"\xef\xbb\xbfrun:\r\n  name: a\r\n")
    assert loaded["run"].value == {"name": Entry(Scalar("a"), 2)}


def test_a_merge_key_yields_to_the_mappings_own_keys(tmp_path: Path) -> None:
    loaded = load(tmp_path, "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  <<: [*a, *b]\n  x: 9\n")
    merged = loaded["c"].value
    assert isinstance(merged, dict)
    assert {key: entry.value for key, entry in merged.items()} == {"x": Scalar("9"), "y": Scalar("2"), "z": Scalar("4")}


def test_aliases_cannot_multiply(tmp_path: Path) -> None:
    loaded = load(tmp_path, "a: &a [x, y]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    a, b, c = (loaded[key].value for key in "abc")
    assert isinstance(b, list)
    assert isinstance(c, list)
    # One value however often it is named: copies would grow exponentially with the number of lines.
    assert b[0] is b[1] is a
    assert c[0] is c[1] is b
    assert len(load(tmp_path, f"a: &a x\nb: [{', '.join(['*a'] * 100)}]\n")) == 2
    assert refusal(tmp_path, f"a: &a x\nb: [{', '.join(['*a'] * 101)}]\n")[0] == "expected at most 100 aliases"


def test_a_plain_value_of_set_is_taken_as_it_stands() -> None:
    for text in ["#3", "a: b", "!!python/object:os.system", "*x", "&x", "- 3", "3 # three", "x]"]:
        assert parse_value(text, "--set run.name") == Scalar(text)
    assert parse_value(" 64 ", "--set a.b") == Scalar("64")
    assert parse_value("'a b'", "--set a.b") == Scalar("a b", "quoted")
    assert parse_value("[128, 1e1]", "--set a.b") == [Scalar("128"), Scalar("1e1")]


@pytest.mark.parametrize("text", ["[1, 2", "'a", "[1] 2", "{a: 1"])
def test_a_set_value_that_is_not_closed_names_its_key(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_value(text, "--set model.units")
    assert caught.value.where == "--set model.units"
