"""requirements.lock pins what pyproject.toml asks for, and says nothing about where to get it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = "queue-workflows"


def declared() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["build-system"]["requires"],
        *(text for extra in extras for text in extra),
    ]
    return [need for need in map(Requirement, texts) if canonicalize_name(need.name) != OURS]


def pinned() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", LOCK, re.MULTILINE))


def test_every_declared_dependency_is_pinned_to_a_version_it_allows() -> None:
    """Every extra, and what builds the package: set up once, nothing needs the network afterwards."""
    pins = pinned()
    unmet = [str(need) for need in declared() if not need.specifier.contains(pins.get(need.name, "0"))]
    assert unmet == [], "run `make lock`"


def test_every_pin_has_a_hash() -> None:
    """pip --require-hashes refuses the whole file otherwise."""
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert {entry.partition("==")[0] for entry in entries} == set(pinned())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_no_address_and_no_path_stands_in_the_lock() -> None:
    """Which registry is used is each reader's own choice."""
    assert not re.search(r"://|--index-url|--extra-index-url|--find-links|@ |^/|\s/", LOCK, re.MULTILINE)
