"""What people read of a program speaks of programs as "it", in sentences that can be read alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Of people and of programs: so often of the latter that there is no telling them apart.
OF_PERSONS = re.compile(r"\b(who|whose|whom|whoever)\b", re.IGNORECASE)
LEANING = re.compile(r"(The same|Those|Of one)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring of a file, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def flaws(file: Path) -> list[str]:
    """The lines of a file that speak otherwise."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    found = [f"{number}: {line}" for number, line in enumerate(lines, 1) if OF_PERSONS.search(line)]
    if file.suffix != ".py":
        return found
    return found + [f"{number}: {text}" for number, text in docstrings(source) if LEANING.match(text)]


def test_words() -> None:
    """Pages, comments, docstrings, help texts and messages alike."""
    found = {str(file.relative_to(ROOT)): flaws(file) for file in [*SOURCES, *PAGES]}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_docstrings_of_benchmarks_can_be_read_alone() -> None:
    """They are read as the package's are."""
    files = sorted((ROOT / "scripts" / "bench").rglob("*.py"))
    texts = {file.relative_to(ROOT): docstrings(file.read_text(encoding="utf-8")) for file in files}
    assert [(file, text) for file, found in texts.items() for _, text in found if LEANING.match(text)] == []
