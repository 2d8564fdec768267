"""The tests of a run share one server: what they ask about its sessions and locks is of their own database.

A file has a database of its own, and beside it others run. One that waits for a lock that somebody waits for
would else find that of another file, and go on too early.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
OF_THE_SERVER = re.compile(r"FROM pg_(stat_activity|locks)\b")
# A session is one of ours, and so is what it holds; `usename` is asked for in a server of a file's own.
OF_ONE = re.compile(r"current_database\(\)|\bpid = |pid = ANY|= ANY \(pg_blocking_pids\(pid\)\)|usename = ")


def texts(tree: ast.AST) -> Iterator[str]:
    """Each text of a module; of one into which something is put, all that stands there."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "?".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def offends(text: str) -> bool:
    """Whether it asks about all databases of the server."""
    return OF_THE_SERVER.search(text) is not None and OF_ONE.search(text) is None


def test_every_look_at_the_server_names_a_database_or_a_session() -> None:
    """In whatever file it stands."""
    found = [
        f"{file.relative_to(TESTS)}: {text}"
        for file in TESTS.rglob("*.py")
        for text in texts(ast.parse(file.read_text(encoding="utf-8")))
        if offends(text)
    ]
    assert found == []


def test_one_that_asks_about_all_of_them_is_found() -> None:
    """And one that does not is left alone."""
    assert offends("SELECT count(*) FROM pg_" + "locks WHERE objid = 4711 AND NOT granted")
    assert not offends("SELECT FROM pg_" + "locks WHERE database = (... datname = current_database())")
