"""A folder of images, with a subfolder per class, as arrays.

Legend: n images, h and w their height and width, k channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.errors import UsageError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def list_images(folder: Path, where: str) -> dict[str, list[Path]]:
    """Return the images of each class, classes and files in alphabetical order. Nothing is read.

    Raises:
        UsageError: The folder cannot be listed, has no subfolders, or one of them has no images.
    """
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        found = {
            path.name: sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS) for path in classes
        }
    except OSError as error:
        raise UsageError(
            f"expected a folder with a subfolder per class, received {folder}: {error.strerror or error}", where=where
        ) from None
    if not found:
        raise UsageError(f"expected a subfolder per class, found none in {folder}", where=where)
    for name, files in found.items():
        if not files:
            raise UsageError(
                f"expected images ({', '.join(ENDINGS)}), found none in {folder / name}",
                where=where,
                hint="remove the folder, if it is no class",
            )
    return found


def read_images(
    classes: dict[str, list[Path]], names: Sequence[str], size: tuple[int, int] | None
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Decode images.

    Args:
        classes: Files by class.
        names: All classes, in order: the number of a class is its place.
        size: Height and width to resize to; ``None``: all must have one size.

    Returns:
        Images uint8 [n, h, w, k], with one channel if all are grey, otherwise three; labels int32 [n].

    Raises:
        UsageError: Pillow is not installed, a file is damaged, or sizes differ.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UsageError(
            "expected Pillow, which decodes images, found none",
            where="data.dataset=images",
            hint="pip install 'tfmp[images]'",
        ) from None
    files = [(names.index(name), file) for name, paths in classes.items() for file in paths]
    arrays: list[NDArray[Any]] = []
    for _, file in files:
        try:
            with Image.open(file) as image:
                decoded = image.convert("L" if image.mode in ("1", "L") else "RGB")
                arrays.append(np.asarray(decoded.resize(size[::-1]) if size else decoded))
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise UsageError(f"expected an image: {error}", where=str(file)) from None
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            raise UsageError(
                f"expected images of one size, received {_size(arrays[-1])} after {_size(arrays[0])}",
                where=str(file),
                hint="--set 'data.image_size=[32,32]' resizes all",
            )
    channels = max(array.ndim for array in arrays) * 2 - 3
    stacked = np.stack([np.repeat(a[..., np.newaxis], channels, -1) if a.ndim == 2 else a for a in arrays])
    return stacked, np.array([number for number, _ in files], np.int32)


def _size(array: NDArray[Any]) -> str:
    return f"{array.shape[1]} x {array.shape[0]}"
