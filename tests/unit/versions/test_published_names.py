"""What a worker says that it knows: its tasks, or the modules of its package, none of which is imported."""

from __future__ import annotations

import sys
from importlib import invalidate_caches
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from queue_workflows.engine.registry.published_names import MOST, MOST_LACKED, PublishedNames, modules_below


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package of which no module can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "shop_nodes"
    for name in ("__init__", "plan", "_private", "film/cut", "film/__init__", "film/deep/mix"):
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "__init__" else "raise RuntimeError('imported')")
    (root / "notes.txt").write_text("no module")
    return root


def test_the_modules_of_a_package_are_found_by_their_files(package: Path) -> None:
    """Whether or not there is an `__init__`, and the package itself is not imported either."""
    assert modules_below("shop_nodes") == (("film", "film.cut", "film.deep", "film.deep.mix", "plan"), True)
    assert [name for name in sys.modules if name.startswith("shop_nodes.")] == []


def test_files_that_nobody_can_import_are_no_modules(package: Path) -> None:
    """A copy, an extension for another interpreter, a name that no document may have: none is told."""
    for name in ("draw.bak.py", "mix.cpython-27-other.so", "fa\u00e7ade.py", f"fast{EXTENSION_SUFFIXES[0]}"):
        (package / name).write_text("")
    (package / "old.copy").mkdir()
    assert modules_below("shop_nodes")[0] == (
        "fast",
        "film",
        "film.cut",
        "film.deep",
        "film.deep.mix",
        "plan",
    )


def test_of_a_package_with_more_modules_than_are_told_there_are_others(package: Path) -> None:
    """So that nobody takes a name that is missing for one that is not known."""
    for number in range(MOST + 1):
        (package / f"n{number}.py").write_text("")
    names, is_whole = modules_below("shop_nodes")
    assert (len(names) >= MOST, is_whole) == (True, False)


def test_a_package_that_is_not_there_may_have_anything() -> None:
    """Only a look finds out."""
    assert modules_below("no.such.package") == ((), False)


def test_a_package_below_one_that_is_broken_may_have_anything(package: Path) -> None:
    """To look for it imports what is above it, which may raise anything: its jobs fail of that, no worker."""
    for broken in ("RuntimeError('away')", "SystemExit(3)"):
        (package / "film" / "__init__.py").write_text(f"raise {broken}")
        invalidate_caches()
        assert modules_below("shop_nodes.film.deep") == ((), False)


def test_a_bounded_number_of_names_is_passed_by() -> None:
    """Each once, in the order in which they were met; jobs of further names are put on hold one by one."""
    it = PublishedNames("fetch", None, lambda: ((), False))
    for number in [*range(MOST_LACKED), 0, 1]:
        assert it.lack(f"task {number}")
    assert it.lacked == tuple(f"task {number}" for number in range(MOST_LACKED))
    assert not it.lack("one more")
    assert it.versions == {}


def test_what_is_found_later_is_lacked_no_more() -> None:
    """As a module that came into the package; the others still are."""
    it = PublishedNames("cpu", "1.8", lambda: ((), True))
    assert it.lack("plan")
    assert it.lack("draw")
    it.find(["plan", "other"])
    assert it.lacked == ("draw",)
    assert it.versions == {"app": "1.8"}
