"""Folders of images as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.data.test_cache import Data
from tfmp.data.cache import prepare
from tfmp.errors import UsageError


def folder(root: Path, shape: tuple[int, ...] = (4, 6), each: int = 5) -> dict[tuple[str, int], np.ndarray]:
    """Two classes of random images, and their pixels."""
    rng = np.random.default_rng(3)
    pixels = {}
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(each):
            pixels[name, i] = rng.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels[name, i]).save(root / name / f"{i}.png")
    return pixels


def test_every_image_is_read_once_with_its_class(tmp_path: Path) -> None:
    pixels = folder(tmp_path / "images")
    data = Data(dataset="images", path=tmp_path / "images", cache_dir=tmp_path / "cache", validation_fraction=0.2)
    arrays = prepare(data).open()
    assert (arrays.classes, arrays.scaled, arrays.input_shape) == (2, True, (4, 6, 1))
    assert (len(arrays.train), len(arrays.validation)) == (8, 2)
    read = {
        (bytes(image.reshape(-1)), int(label))
        for split in (arrays.train, arrays.validation)
        for image, label in zip(split.x, split.y, strict=True)
    }
    assert read == {(array.tobytes(), ["cat", "dog"].index(name)) for (name, _), array in pixels.items()}


def test_colours_validation_folder_and_size(tmp_path: Path) -> None:
    folder(tmp_path / "train", (4, 6, 3))
    folder(tmp_path / "test", (9, 5), each=2)
    data = Data(
        dataset="images",
        path=tmp_path / "train",
        validation_path=tmp_path / "test",
        image_size=(3, 2),
        cache_dir=tmp_path / "cache",
    )
    with pytest.raises(UsageError, match=r"expected validation samples like the training samples"):
        prepare(data)  # grey against colours
    folder(tmp_path / "colours", (9, 5, 3), each=2)
    arrays = prepare(Data(**{**vars(data), "validation_path": tmp_path / "colours"})).open()
    assert (arrays.train.x.shape, arrays.validation.x.shape) == ((10, 3, 2, 3), (4, 3, 2, 3))
    assert arrays.validation.y.tolist() == [0, 0, 1, 1]


def test_a_changed_file_makes_a_new_entry(tmp_path: Path) -> None:
    folder(tmp_path / "images")
    data = Data(dataset="images", path=tmp_path / "images", cache_dir=tmp_path / "cache")
    first = prepare(data).path
    assert prepare(data).path == first
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "images" / "dog" / "9.png")
    assert prepare(data).path != first


def test_what_is_no_folder_of_classes_is_refused(tmp_path: Path) -> None:
    def refusal() -> UsageError:
        with pytest.raises(UsageError) as caught:
            prepare(Data(dataset="images", path=tmp_path / "images", cache_dir=tmp_path / "cache"))
        return caught.value

    assert refusal().what == (
        f"expected a folder with a subfolder per class, received {tmp_path / 'images'}: No such file or directory"
    )
    (tmp_path / "images").mkdir()
    assert "expected a subfolder per class, found none" in refusal().what
    (tmp_path / "images" / "cat").mkdir()
    assert "expected images (.png" in refusal().what
    (tmp_path / "images" / "cat" / "a.png").write_bytes(b"no picture")
    assert str(refusal().where) == str(tmp_path / "images" / "cat" / "a.png")
    for name, size in (("a", (4, 4)), ("b", (5, 4))):
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / "images" / "cat" / f"{name}.png")
    assert refusal().what == "expected images of one size, received 4 x 5 after 4 x 4"
