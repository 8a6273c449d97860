"""Fixtures of the deployment tests."""

from __future__ import annotations

import pytest

from tests.deploy.docker_support import Image, build_image, start_engine


@pytest.fixture(scope="session")
def engine() -> None:
    """A container engine."""
    if (reason := start_engine()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def image(engine: None) -> Image:
    """The image, built."""
    return build_image()
