"""What is stored of a durable function, and which of its calls is which step.

A step is known by its name, with the branch that calls it in that name, and which call of that name it is. So
branches that run side by side may come to their steps in any order. Code that does one thing after the other
comes to them in the order that is stored: another one is another way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from queue_workflows.errors import NonDeterminism
from queue_workflows.repositories.durable.steps import ANY_VERSION, StepRow
from queue_workflows.states import StepKind


class Call(NamedTuple):
    """A call of the function's: the step that it is; `beside` others that have not ended, in a `branch`."""

    name: str
    number: int
    position: int
    kind: StepKind
    beside: bool
    branch: str = ""

    def goes_on_after(self, branch: str, position: int) -> bool:
        """Whether the function has gone on from there: that branch, or one that it is of, called after it."""
        is_of = not self.branch or branch == self.branch or branch.startswith(f"{self.branch} / ")
        return is_of and self.position > position

    def __str__(self) -> str:
        return _said(self.kind, self.name, self.number)


class History:
    """The stored steps of a job, and how far this attempt has come."""

    def __init__(self, job: str, rows: Sequence[StepRow]) -> None:
        self._job = job
        self._round = 0
        self.args: dict[str, object] | None = None
        self._seed = job
        if rows and rows[0].kind is StepKind.ROUND:
            first = rows[0].result
            # A copy has no arguments of a round of its own, but draws as the job that it is a copy of.
            self._round, self.args = first["round"], first.get("args")
            self._seed = first.get("seed") or job
            rows = rows[1:]
        # Under which code these steps were made; what began a round says nothing of that.
        self.version: str | None = next((row.version for row in rows if row.version != ANY_VERSION), None)
        # They were copied for whatever code comes next, and none has.
        self.is_of_any_version = bool(rows) and all(row.version == ANY_VERSION for row in rows)
        self.is_new = not rows
        self._stored = {row.key: row for row in rows}
        # In the order of their calls.
        self._unmet = {row.key: row for row in rows}
        self._numbers: Counter[str] = Counter()
        self._position = 0
        self._draws: Counter[str] = Counter()
        self._open = 0
        # Once anything ran beside something else, order says nothing.
        self._is_ordered = not any(row.beside for row in rows)

    @property
    def round(self) -> int:
        """How often the function began anew."""
        return self._round

    @property
    def position(self) -> int:
        """How many calls the function has made."""
        return self._position

    def call(self, name: str, kind: StepKind, *, branch: str = "") -> Call:
        """The function comes to a step, in the order of such calls; or a `branch` of it does."""
        self._numbers[name] += 1
        self._position += 1
        beside = bool(branch) or self._open > 0
        self._open += 1
        self._is_ordered = self._is_ordered and not beside
        return Call(name, self._numbers[name], self._position, kind, beside, branch)

    def ended(self) -> None:
        """A call has come to its end, however it did."""
        self._open -= 1

    def stored(self, call: Call) -> StepRow | None:
        """What is stored of a call; None for a new one, unless another one was to come."""
        key = (call.name, call.number)
        row = self._stored.get(key)
        if self._is_ordered and self._unmet and row is not self._next():
            self._refuse(str(call))
        if row is not None:
            if row.kind is not call.kind:
                raise NonDeterminism(position=row.position, stored=said(row), called=str(call))
            self._unmet.pop(key, None)
        return row

    def close(self) -> None:
        """The function has returned: nothing that is stored may have been left out."""
        if self._unmet:
            self._refuse("its end")

    def _next(self) -> StepRow:
        """The first step that the function has not come to."""
        return next(iter(self._unmet.values()))

    def _refuse(self, called: str) -> None:
        first = self._next()
        raise NonDeterminism(position=first.position, stored=said(first), called=called)

    def random(self, branch: str = "") -> random.Random:
        """A source that draws the same in each attempt, another one at each call of a branch."""
        self._draws[branch] += 1
        seed = f"{self._seed} {self._round} {self._draws[branch]} {branch}".rstrip()
        return random.Random(seed)  # noqa: S311 - no secret


def said(row: StepRow) -> str:
    """A stored step, as messages name it."""
    return _said(row.kind, row.name, row.call)


def _said(kind: StepKind, name: str, number: int) -> str:
    which = f" (call {number})" if number > 1 else ""
    return f"the {kind.value} {name!r:.80}{which}"
