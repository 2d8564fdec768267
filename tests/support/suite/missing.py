"""What a test does where a program that it needs is not there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip, but fail where everything has to be there."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)
