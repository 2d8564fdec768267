"""A digest of what a durable function's own lines say, so that other code under the same version is noticed.

Of its lines as Python reads them: comments, blank lines, decorators and its docstring say nothing, nor does
its name, which is another one where it is an older version. What it calls is not looked at, as a step's code
may change at any time. Loaded where a task is durable.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from textwrap import dedent
from typing import Any, Final

# Between what a function is called and its digest, where workers say what they know.
MARK: Final = "#"


def code_digest(fn: Callable[..., Any]) -> str | None:
    """The digest of a function; None where its source is not there, or is no `def`.

    Whatever goes wrong: an object may not even have a hash, and no worker is to end by what it tells others.
    """
    try:
        return _digest(fn)
    except Exception:
        return None


@cache
def _digest(fn: Callable[..., Any]) -> str | None:
    (read,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(fn)))).body
    if not isinstance(read, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    read.name, read.decorator_list = "_", []
    if ast.get_docstring(read, clean=False) is not None:
        read.body = read.body[1:] or [ast.Pass()]
    return blake2b(ast.unparse(read).encode(), digest_size=8).hexdigest()


def code_name(known: str, fn: Callable[..., Any]) -> str | None:
    """What workers say of a version of a task, as in `onboard@2#5f3a…`."""
    digest = code_digest(fn)
    return None if digest is None else f"{known}{MARK}{digest}"
