"""The layers of pyproject.toml hold, and the check that says so would see it if they did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources and the contracts, to spoil."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache", "--no-logo"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_an_import_that_points_up_is_refused(copy: Path) -> None:
    """A leaf that imports the command line breaks the build, and is named."""
    with (copy / "src/queue_workflows/errors/base.py").open("a", encoding="utf-8") as errors:
        errors.write("\nfrom queue_workflows.cli import Invocation\n")
    ended = lint_imports(copy)
    assert ended.returncode == 1
    assert "queue_workflows.errors.base -> queue_workflows.cli" in ended.stdout


def test_a_package_without_a_layer_is_refused(copy: Path) -> None:
    """Nobody adds a package without saying where it stands."""
    (copy / "src/queue_workflows/utils.py").write_text('"""Anything."""\n', encoding="utf-8")
    ended = lint_imports(copy)
    assert ended.returncode == 1
    assert "utils" in ended.stdout


def test_folders_that_need_each_other_are_refused(copy: Path) -> None:
    """A subject stands on others or carries them, never both."""
    with (copy / "src/queue_workflows/hooks/script/arguments.py").open("a", encoding="utf-8") as arguments:
        arguments.write("\nfrom queue_workflows.hooks.attempt import result\n")
    ended = lint_imports(copy)
    assert ended.returncode == 1
    assert "queue_workflows.hooks" in ended.stdout


MOST_FILES = 15


@pytest.mark.parametrize("root", ["src/queue_workflows", "tests", "scripts/bench"])
def test_a_folder_is_seen_at_a_glance(root: str) -> None:
    """Beside its `__init__`; what has more files has two subjects."""
    folders = [folder for folder in (ROOT / root).rglob("*") if folder.is_dir()]
    counts = {
        str(folder.relative_to(ROOT)): sum(file.name != "__init__.py" for file in folder.glob("*.py"))
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def crowded_docs(docs: Path) -> dict[str, int]:
    """The folders of documentation with more files than a reader takes in.

    `decisions/` is exempt: it is a numbered record, which only grows and is read from the index.
    """
    folders = [docs, *(folder for folder in docs.rglob("*") if folder.is_dir())]
    counts = {
        folder.name: sum(file.is_file() for file in folder.iterdir())
        for folder in folders
        if folder != docs / "decisions"
    }
    return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def test_a_folder_of_docs_is_seen_at_a_glance() -> None:
    """A page is found by what its reader wants: to do something, to look something up, or to deploy."""
    assert crowded_docs(ROOT / "docs") == {}


def test_a_crowded_folder_of_docs_is_seen(tmp_path: Path) -> None:
    """One page too many is one, and the record of decisions may have any number."""
    for folder in ("how-to", "reference", "decisions"):
        (tmp_path / folder).mkdir()
        for number in range(MOST_FILES + (folder != "reference")):
            (tmp_path / folder / f"{number}.md").touch()
    assert crowded_docs(tmp_path) == {"how-to": MOST_FILES + 1}
