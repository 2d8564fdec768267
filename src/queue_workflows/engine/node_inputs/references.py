"""The scope in which a node's references are resolved, read late: what upstream has stored by now.

Only what the paths lead to is read, in one statement, so that an element of a list may name one of another
list without the rest of it. Where a path leads nowhere the whole is read again, because the error that comes
of it says what is there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from json import loads
from typing import Any, Final

from queue_workflows.errors import UnknownRun
from queue_workflows.repositories.runs.references import Part, ScopeRepository, Steps, Want
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import ABSENT, Glimpse

_INPUTS: Final = "inputs"
_RUN: Final = "run"
# The host app's resolver is asked with the run at hand.
_OF_THE_RUN: Final = frozenset({_RUN, "host"})
_GIVEN: Final = frozenset({"item", "index", "it"})
_FACTS: Final = Want(None, None)
_LIKE_AN_INDEX: Final = re.compile(r"\s*[+-]\s*\d+\s*|\s+\d+\s*|\d+\s+")


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
    wants = list(dict.fromkeys(_wants(paths)))
    if not wants:
        return scope
    repository = ScopeRepository(connection)
    found = dict(zip(wants, repository.read(run_id, wants), strict=True))
    _check_run(run_id, found)
    missing = {want for want, parts in found.items() if _leads_nowhere(want, parts)}
    if missing:
        instead = list(dict.fromkeys(Want(want.node) for want in missing))
        found = {want: parts for want, parts in found.items() if Want(want.node) not in instead}
        found |= dict(zip(instead, repository.read(run_id, instead), strict=True))
    for want, parts in found.items():
        root = _RUN if want == _FACTS else _INPUTS if want.node is None else want.node
        scope[root] = _merged(scope.get(root), _value(want, parts))
    return scope


def _wants(paths: Iterable[Path]) -> Iterator[Want]:
    """What to read for the paths, none of it twice."""
    by_root: dict[str | None, dict[Steps, None]] = {}
    for path in paths:
        if path.root in _OF_THE_RUN:
            yield _FACTS
        elif path.root not in _GIVEN:
            root = None if path.root == _INPUTS else path.root
            by_root.setdefault(root, {})[_known(path.steps)] = None
    for root, all_steps in by_root.items():
        for steps in all_steps:
            if not any(steps[:length] in all_steps for length in range(len(steps))):
                yield Want(root, steps)


def _known(steps: Steps) -> Steps:
    """The first steps that the server takes as we do: it reads a key such as `-1` as an index of a list."""
    odd = (at for at, step in enumerate(steps) if isinstance(step, str) and _LIKE_AN_INDEX.fullmatch(step))
    return steps[: next(odd, len(steps))]


def _check_run(run_id: uuid.UUID, found: Mapping[Want, list[Part]]) -> None:
    if any(want.node is None and not parts for want, parts in found.items()):
        raise UnknownRun(run_id)


def _leads_nowhere(want: Want, parts: list[Part]) -> bool:
    """Whether there is a result, and nothing where the steps lead in it."""
    (first, *_) = parts
    if first.total is not None and want.steps:
        is_there = want.place is not None and -first.total <= want.place < first.total
        return not is_there or (first.place is not None and first.text is None)
    has_result = want.node is None or first.place is not None
    return bool(want.steps) and has_result and first.text is None


def _value(want: Want, parts: list[Part]) -> Any:
    """What a want's parts are in the scope, with the steps that led to it around it."""
    first = parts[0]
    if first.total is not None and want.place is None:
        elements: list[Any] = [ABSENT] * first.total
        for part in parts:
            if part.text is not None and part.place is not None and part.place < first.total:
                elements[part.place] = loads(part.text)
        return elements
    if first.text is None:
        return ABSENT if first.total is None else Glimpse({(want.steps or ())[0]: ABSENT})
    value = loads(first.text)
    for step in reversed(want.steps or ()):
        value = Glimpse({step: value})
    return value


def _merged(known: Any, more: Any) -> Any:
    """Two parts of one result in one; only the steps that led to them can be in both."""
    if not (isinstance(known, Glimpse) and isinstance(more, Glimpse)):
        return more
    return Glimpse({**known, **{step: _merged(known.get(step), value) for step, value in more.items()}})
