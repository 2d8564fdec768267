"""The package's public names: lazy, complete, and the same for people, editors and type checkers."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import queue_workflows

ROOT = Path(__file__).parents[3]
FACE = ROOT / "src" / "queue_workflows" / "__init__.py"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)


def test_importing_the_package_loads_nothing_of_weight():
    """`import queue_workflows` costs a web application nothing at start-up."""
    heavy = (
        "sqlalchemy",
        "alembic",
        "psycopg",
        "pydantic",
        "click",
        "queue_workflows.config",
        "queue_workflows.db",
    )
    done = python("-c", f"import sys, queue_workflows; print([m for m in {heavy!r} if m in sys.modules])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


# The packages of others are there already; of ours each process that is forked has nothing.
ALONE = """
import os, sys
import alembic.config, click, psutil, psycopg, pydantic_settings, sqlalchemy.orm
assert not any(module.startswith("queue_workflows") for module in sys.modules)
failed = []
for name in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        exec(f"from queue_workflows import {name}; assert {name} is not None")
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
print(failed)
"""


@pytest.mark.slow
def test_every_public_name_resolves_first_and_alone():
    """Each name works in a process that has imported nothing of ours, so that no order of imports matters."""
    done = python("-c", ALONE, *queue_workflows.__all__)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_names_are_those_of_their_home():
    """The face hands out the very objects, and dir() shows them."""
    errors = importlib.import_module("queue_workflows.errors")
    config = importlib.import_module("queue_workflows.config")
    assert queue_workflows.QwfError is errors.QwfError
    assert queue_workflows.configure is config.configure
    assert queue_workflows.db is importlib.import_module("queue_workflows.db")
    assert set(queue_workflows.__all__) <= set(dir(queue_workflows))


def test_unknown_name_is_an_attribute_error():
    """A wrong name fails as in any module, also for `from … import`."""
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        queue_workflows.nothing  # noqa: B018
    assert "cannot import name 'nothing'" in python("-c", "from queue_workflows import nothing").stderr


def test_type_checkers_see_the_same_names():
    """What is imported under TYPE_CHECKING is exactly what is public."""
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported | {"__version__"} == set(queue_workflows.__all__)
    assert (FACE.parent / "py.typed").exists()


def test_version_is_that_of_the_distribution():
    """One version, in pyproject.toml; a mere checkout says that it is not installed."""
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert stated is not None
    assert queue_workflows.__version__ in {stated[1], "0+not.installed"}


def test_python_dash_m_is_the_command():
    """`python -m queue_workflows` is `qwf`: same help, same statuses."""
    done = python("-m", "queue_workflows", "--help")
    assert (done.returncode, done.stdout[:10]) == (0, "Usage: qwf")
    assert python("-m", "queue_workflows", "no-such-command").returncode == 2
