"""Arrays and texts as parameters: what the server reads in one form, whatever is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.families import LARGEST_ID

_NOTHING: Final = "{}"


def fence_params(fences: Sequence[Fence]) -> dict[str, Any]:
    """The arrays of some fences."""
    if not fences:
        return {"ids": _NOTHING, "attempts": _NOTHING, "workers": _NOTHING}
    ids, attempts, workers = zip(*fences, strict=True)
    return {
        "ids": array(map(str, ids)),
        "attempts": array(map(str, attempts)),
        # Nearly always one worker's own.
        "workers": array([_quoted(workers[0])] * len(workers))
        if workers.count(workers[0]) == len(workers)
        else texts(workers),
    }


def id_array(ids: Iterable[int]) -> str:
    """Ids in order, each once."""
    return array(str(check.whole("id", each, 1, LARGEST_ID)) for each in sorted(set(ids)))


def array(words: Iterable[str]) -> str:
    """An array as the server reads it; the driver would type it by what is in it, a plan for each type."""
    return "{" + ",".join(words) + "}"


def texts(values: Iterable[str]) -> str:
    """An array of texts as the server reads it."""
    return array([_quoted(value) for value in values])


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
