"""How deep the package's statements are made of fragments, found out by watching them being made.

Run as a program it imports the package with its f-strings, `+`, `replace`, `format` and `join` exchanged for
those below, which note of each text what was put into it. A name (of tables, columns, parameters; a number; a
list of such) is no fragment. What is written out whole is of level 0, what fragments of level 0 were put into
is of level 1, and so on. A mark in a fragment that is filled in later, when the fragment stands in its
statement, counts where it stands. It prints a line of JSON: the level of each statement by its name.

    statement_levels.py [MODULE]     MODULE is a file that is watched as well
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SQL_FLOOR = "queue_workflows.repositories"
BESIDE_IT = "queue_workflows.engine.runs.parked_inputs"
WATCHED_MODULES = (SQL_FLOOR, BESIDE_IT)
WATCHED = {"replace": "replaced", "format": "formatted", "join": "joined"}
_STATEMENT = re.compile(r"\s*(SELECT|WITH|UPDATE|INSERT|DELETE)\b")
_MARK = re.compile(r"\{\w+\}")
# A column, with a type or a name; a literal, a parameter, a mark; what a family's jobs are called.
_NAME = re.compile(
    r"""\s*([\w.]+(::[\w ]+(\[\])?)?(\s+AS\s+\w+|\s+COLLATE\s+"C"|\s+=\s+excluded\.\w+)?"""
    r"""|'[\w.{}]*'(::\w+(\[\])?)?|%\(\w+\)[sb](::\w+(\[\])?)?|\{\w+\}|[a-z]+\ job|)\s*"""
)


class Made(str):
    """A text that was made of others: its level, and the marks in what was put in, each with its depth."""

    __slots__ = ("level", "pending")
    level: int
    pending: Mapping[str, int]

    def strip(self, *chars: Any) -> Made:
        """What is left is made of the same."""
        return made(str.strip(self, *chars), self.level, self.pending)

    def splitlines(self, *keepends: Any) -> list[str]:
        """Each line is as the whole."""
        return [made(line, self.level, self.pending) for line in str.splitlines(self, *keepends)]


def made(text: str, level: int, pending: Mapping[str, int]) -> Made:
    new = Made(text)
    new.level, new.pending = -1 if is_name(text) else level, pending
    return new


def is_name(text: str) -> bool:
    return all(_NAME.fullmatch(part) for part in text.split(","))


def level_of(text: str) -> int:
    """-1 of a name."""
    return text.level if isinstance(text, Made) else -1 if is_name(text) else 0


def marks_of(text: str) -> Mapping[str, int]:
    return text.pending if isinstance(text, Made) else {}


def beside(texts: Iterable[str]) -> dict[str, int]:
    """The marks in what was put into any of these."""
    found: dict[str, int] = {}
    for text in texts:
        for mark, depth in marks_of(text).items():
            found[mark] = max(depth, found.get(mark, 0))
    return found


def put_in(texts: Iterable[str]) -> tuple[int, dict[str, int]]:
    """The level of what these are put into, and the marks that come with them."""
    whole = [text for text in texts if level_of(text) >= 0]
    found = {mark: 1 + marks_of(text).get(mark, 0) for text in whole for mark in _MARK.findall(text)}
    return max((level_of(text) + 1 for text in whole), default=0), found


def interpolated(*parts: tuple[Any, bool]) -> str:
    """An f-string: its parts, each with whether it stands there literally."""
    texts = [(part if isinstance(part, str) else format(part), literally) for part, literally in parts]
    level, marks = put_in(text for text, literally in texts if not literally)
    return made("".join(text for text, _ in texts), level, marks)


def replaced(base: Any, *args: Any, **named: Any) -> Any:
    if not isinstance(base, str):
        return base.replace(*args, **named)
    old, new = args[:2]
    if old not in base:
        return base
    if base.strip() == old:
        return new
    level, marks = put_in([new])
    if level_of(new) >= 0:
        level += marks_of(base).get(old, 0)
    return made(str.replace(base, *args), max(level_of(base), level, 0), {**marks, **beside([base])})


def formatted(base: Any, *args: Any, **named: Any) -> Any:
    if not isinstance(base, str):
        return base.format(*args, **named)
    level, marks = put_in(text for text in (*args, *named.values()) if isinstance(text, str))
    return made(str.format(base, *args, **named), max(level_of(base), level), marks)


def joined(base: Any, *args: Any) -> Any:
    if not isinstance(base, str):
        return base.join(*args)
    parts = list(*args)
    return made(str.join(base, parts), max(map(level_of, parts), default=-1), beside(parts))


def added(one: Any, other: Any) -> Any:
    if not (isinstance(one, str) and isinstance(other, str)):
        return one + other
    levels = level_of(one), level_of(other)
    level = max(*levels, 1) if min(levels) >= 0 else max(levels)
    return made(str.__add__(one, other), level, beside([one, other]))


class _Watching(ast.NodeTransformer):
    """Has a module call the functions above."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        parts: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                # A format goes with its own value, and holds no SQL.
                is_plain = value.conversion == -1 and value.format_spec is None
                part = self.visit(value.value) if is_plain else ast.JoinedStr([value])
            else:
                part = value
            literally = ast.Constant(isinstance(value, ast.Constant))
            parts.append(ast.Tuple([part, literally], ast.Load()))
        return _call("interpolated", parts)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in WATCHED:
            return _call(WATCHED[node.func.attr], [node.func.value, *node.args], node.keywords)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("added", [node.left, node.right]) if isinstance(node.op, ast.Add) else node


def _call(name: str, args: list[ast.expr], keywords: Iterable[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name("__watch__", ast.Load()), name, ast.Load()), args, list(keywords))


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        tree = _Watching().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__watch__"] = sys.modules[__name__]
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if not fullname.startswith(WATCHED_MODULES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def texts_of(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The texts in a module's value, by names that say where."""
    if isinstance(value, str):
        yield name, value
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, tuple):
        inner = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    if depth < 3:
        for key, each in inner:
            yield from texts_of(f"{name}[{key}]", each, depth + 1)


def statements_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, value in list(vars(module).items()):
        if not name.startswith("__"):
            for where, text in texts_of(f"{module.__name__}.{name}", value):
                if _STATEMENT.match(text):
                    yield where, text


def bulk_statements() -> Iterator[tuple[str, str]]:
    """Those that are made when rows are there, for what rows may have in common."""
    from queue_workflows.repositories.jobs import bulk_insert, ingest, ingest_rows, nodes

    tables = (
        *(ingest_rows.BULK, ingest.KEYED_BULK),
        *(nodes._BULK, nodes._OPENED, nodes._KEYED_BULK, nodes._KEYED_OPENED),
    )
    for number, table in enumerate(tables):
        if table.source == bulk_insert.GIVEN:
            yield f"single {number}", bulk_insert._single(table)
        unnamed = tuple(name for name in table.names if name not in (*table.key, *table.large[:1]))
        yield f"arrays {number}", bulk_insert._statement(table, table.names, (), (), False)
        yield f"placed {number}", bulk_insert._statement(table, table.names, table.large, (), True)
        yield f"alike {number}", bulk_insert._statement(table, table.large, table.large, unnamed, False)
        yield f"keyless {number}", bulk_insert._statement(table, table.large[:1], (), table.key, False)


def main() -> None:
    sys.meta_path.insert(0, _Finder())
    package = importlib.import_module(SQL_FLOOR)
    names = [BESIDE_IT]
    names += [found.name for found in pkgutil.walk_packages(package.__path__, f"{SQL_FLOOR}.")]
    modules = [importlib.import_module(name) for name in names]
    for path in sys.argv[1:]:
        loader = _Loader(Path(path).stem, path)
        spec = importlib.machinery.ModuleSpec(loader.name, loader, origin=path)
        modules.append(importlib.util.module_from_spec(spec))
        loader.exec_module(modules[-1])
    found = [pair for module in modules for pair in statements_of(module)]
    print(json.dumps({name: level_of(text) for name, text in [*found, *bulk_statements()]}))


if __name__ == "__main__":
    main()
