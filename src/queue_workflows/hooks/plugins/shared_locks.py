"""Which hooks of an event share the host lock of a listener; `attempt/shared_lock` says how."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

# The input of a node by which its attempts know the lock that they share or take.
SHARED_LOCK: Final = "shared_lock"
# What runs beside a listener by its lock runs alone by this one.
_BESIDE: Final = "beside "


def share_locks(nodes: Sequence[dict[str, Any]], held: Collection[str] = ()) -> frozenset[str]:
    """Have the nodes with a lock that one of them holds until the seal share that, one at a time.

    So for what is `held` by the setup of their tree. A listener has no lock of its own beside: it would keep
    that for as long. Returns all that is shared.
    """
    own = {node["host_lock"] for node in nodes if "host_lock" in node and _is_listener(node)}
    held = own.union(held)
    for node in nodes:
        if node.get("host_lock") in held:
            lock = node.pop("host_lock")
            node["inputs"] = {**node["inputs"], SHARED_LOCK: lock}
            if not _is_listener(node):
                node["host_lock"] = _BESIDE + lock
    return frozenset(held)


def _is_listener(node: dict[str, Any]) -> bool:
    return bool(node["inputs"].get("at_seal") == "kill")
