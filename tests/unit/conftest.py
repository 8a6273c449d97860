"""Unit tests answer within seconds: fewer examples of each property than in CI, which has Hypothesis's usual number."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=25, deadline=None)
if "CI" not in os.environ:
    settings.load_profile("quick")
