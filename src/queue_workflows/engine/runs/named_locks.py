"""What a node's jobs hold while they run, by a name that the run's data may say: a host lock, a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from queue_workflows.errors import RefError
from queue_workflows.repositories.sql.checks import ELSEWHERE, EXCLUSIVE
from queue_workflows.workflow.document.nodes import BaseNode, TaskNode, bare_lock_text, key_text, lock_text
from queue_workflows.workflow.references.references import HostRefs, paths_in, resolve

_OF_AN_ELEMENT: Final = frozenset({"item", "index"})


class Names(NamedTuple):
    """What a job is inserted with."""

    host_lock: str | None = None
    limit_key: str | None = None


def names_of(
    node: BaseNode,
    elements: Sequence[Any] | None,
    part: Iterable[int | None],
    scope: Mapping[str, Any],
    host: HostRefs | None,
) -> Mapping[int | None, Names]:
    """The names for the jobs of a part, by their index; empty for a node with jobs that hold nothing."""
    if not isinstance(node, TaskNode) or (node.host_lock is None and node.exclusive is None):
        return {}
    roots = {path.root for value in (node.host_lock, node.exclusive) for path in paths_in(value)}
    if elements is None or roots.isdisjoint(_OF_AN_ELEMENT):
        return dict.fromkeys(part, _names(node, scope, host))
    return {
        index: _names(node, {**scope, "item": elements[index], "index": index}, host)
        for index in part
        if index is not None
    }


def _names(node: TaskNode, scope: Mapping[str, Any], host: HostRefs | None) -> Names:
    lock, policy, checked = node.host_lock, "", lock_text
    if isinstance(lock, dict) and "name" in lock:
        lock, policy = lock["name"], ELSEWHERE if lock.get("when_held") == "elsewhere" else ""
        checked = bare_lock_text
    host_lock = _text(lock, scope, f"{node.id}.host_lock", host, checked)
    exclusive = _text(node.exclusive, scope, f"{node.id}.exclusive", host, key_text)
    return Names(
        None if host_lock is None else policy + host_lock,
        node.limit_key if exclusive is None else EXCLUSIVE + exclusive,
    )


def _text(
    value: Any,
    scope: Mapping[str, Any],
    where: str,
    host: HostRefs | None,
    checked: Callable[[str], str],
) -> str | None:
    """A name; a whole number is one too, as a port is, and null is none."""
    found = resolve(value, scope, where=where, host=host)
    if found is None:
        return None
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    try:
        if isinstance(found, str):
            return checked(found)
        said = "must be a text, or a whole number"
    except ValueError as exc:
        said = str(exc)
    raise RefError(f"it is no name: it {said}", where=where)
