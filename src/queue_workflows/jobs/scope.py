"""The scope in which a node's references are resolved, read late: what upstream has stored by now.

Only what the paths lead to is read, in one statement. Keys are followed by the server, and indexes are not;
where a key leads nowhere the whole is read again, because the error that comes of it says what is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from queue_workflows.errors import UnknownRun
from queue_workflows.repositories.connection import Handle
from queue_workflows.repositories.scopes import Part, ScopeRepository, Want
from queue_workflows.workflow.paths import Path
from queue_workflows.workflow.refs import ABSENT

_INPUTS: Final = "inputs"
_RUN: Final = "run"
# The host app's resolver is asked with the run at hand.
_OF_THE_RUN: Final = frozenset({_RUN, "host"})
_GIVEN: Final = frozenset({"item", "index", "it"})
_FACTS: Final = Want(None, None)


def load_scope(
    connection: Handle,
    run_id: uuid.UUID,
    paths: Iterable[Path],
    *,
    item: Any = None,
    index: int | None = None,
) -> Mapping[str, Any]:
    """What `refs.resolve` needs for these paths; `index` is that of the `for_each` element, if it is one.

    Nothing is read where no path leads beyond the element.
    """
    scope: dict[str, Any] = {} if index is None else {"item": item, "index": index}
    wants = sorted(set(_wants(paths)), key=lambda want: (want.node or "", want.keys or ()))
    if not wants:
        return scope
    repository = ScopeRepository(connection)
    found = dict(zip(wants, repository.read(run_id, wants), strict=True))
    _check_run(run_id, found)
    missing = {want for want, parts in found.items() if _leads_nowhere(want, parts)}
    if missing:
        instead = sorted({Want(want.node) for want in missing}, key=lambda want: want.node or "")
        found = {want: parts for want, parts in found.items() if Want(want.node) not in instead}
        found |= dict(zip(instead, repository.read(run_id, instead), strict=True))
    for want, parts in found.items():
        root = _RUN if want == _FACTS else _INPUTS if want.node is None else want.node
        scope[root] = _merged(scope.get(root), _value(want, parts))
    return scope


def _wants(paths: Iterable[Path]) -> Iterator[Want]:
    """What to read for the paths, none of it twice."""
    by_root: dict[str | None, set[tuple[str, ...]]] = {}
    for path in paths:
        if path.root in _OF_THE_RUN:
            yield _FACTS
        elif path.root not in _GIVEN:
            root = None if path.root == _INPUTS else path.root
            by_root.setdefault(root, set()).add(_keys(path.steps))
    for root, all_keys in by_root.items():
        for keys in all_keys:
            if not any(keys[:length] in all_keys for length in range(len(keys))):
                yield Want(root, keys)


def _keys(steps: Sequence[str | int]) -> tuple[str, ...]:
    """The first steps that can only be keys: a number may be an index, which has to see the whole list."""
    keys: list[str] = []
    for step in steps:
        if isinstance(step, int) or step.isdecimal():
            break
        keys.append(step)
    return tuple(keys)


def _check_run(run_id: uuid.UUID, found: Mapping[Want, list[Part]]) -> None:
    if any(want.node is None and not parts for want, parts in found.items()):
        raise UnknownRun(run_id)


def _leads_nowhere(want: Want, parts: list[Part]) -> bool:
    """Whether there is a result, and nothing at the keys in it."""
    (first, *_) = parts
    has_result = want.node is None or first.place is not None
    return bool(want.keys) and has_result and first.text is None


def _value(want: Want, parts: list[Part]) -> Any:
    """What a want's parts are in the scope, with the keys that led to it around it."""
    first = parts[0]
    if first.total is not None:
        elements: list[Any] = [ABSENT] * first.total
        for part in parts:
            if part.text is not None and part.place is not None and part.place < first.total:
                elements[part.place] = json.loads(part.text)
        return elements
    if first.text is None:
        return ABSENT
    value = json.loads(first.text)
    for key in reversed(want.keys or ()):
        value = {key: value}
    return value


def _merged(known: Any, more: Any) -> Any:
    """Two parts of one result in one object; only the keys that led to them can be in both."""
    if not (isinstance(known, dict) and isinstance(more, dict)):
        return more
    return known | {key: _merged(known.get(key), value) for key, value in more.items()}
