"""The statements that name the table of ingest jobs or that of any family, as the source has them.

All of the package is looked through, as a statement may stand anywhere; of modules outside the repositories
the names begin with their folder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import queue_workflows

PACKAGE: Final = Path(queue_workflows.__file__).parent
REPOSITORIES: Final = PACKAGE / "repositories"
_NAMES_TABLE: Final = re.compile(
    r"(?:\bFROM|\bJOIN|\bUPDATE|\bINTO)\s+(?:ONLY\s+)?"
    r"(?:ingest_jobs\w*|\{(?:[\w.]*\.)?(?:table|source)(?:\.name|\(.*?\))?\})(?![\w-])"
)


def statements() -> dict[str, set[str]]:
    """By module, the names of constants in which such a statement, or a part of one, is written."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = set(_named(ast.parse(path.read_text(encoding="utf-8"))))
        if names:
            inside = REPOSITORIES if path.is_relative_to(REPOSITORIES) else PACKAGE
            found[path.relative_to(inside).with_suffix("").as_posix()] = names
    return found


def _named(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if any(_NAMES_TABLE.search(text) for text in _texts(node)):
            yield _name(node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return getattr(node, "name", ast.unparse(node).splitlines()[0])


def _texts(node: ast.stmt) -> Iterator[str]:
    """Each string that is written in it, without docstrings."""
    docs = {
        id(each.body[0].value)
        for each in ast.walk(node)
        if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        and each.body
        and isinstance(each.body[0], ast.Expr)
    }
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in docs:
            yield each.value
        elif isinstance(each, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in each.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
