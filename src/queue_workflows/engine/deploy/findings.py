"""What a look at a deploy finds: a sentence about a name, how much is concerned, and how bad that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What becomes of the rows that a finding is about, once the code is deployed."""

    # They fail, or wait for code that is not there any more.
    BREAKS = "breaks"
    # They go on in another way than today.
    CHANGES = "changes"
    # Nothing was compared.
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Finding:
    """`rows` are jobs, runs or schedules, as `of` says; `example` is one of them, as commands take it."""

    level: Level
    kind: str
    name: str
    says: str
    rows: int = 0
    of: str = "job"
    example: str | None = None


@dataclass(frozen=True, slots=True)
class LookedAt:
    """How much was compared."""

    tasks: int = 0
    modules: int = 0
    jobs: int = 0
    schedules: int = 0
    limits: int = 0


@dataclass(frozen=True, slots=True)
class DeployReport:
    """All findings, the worst first, and how much was looked at."""

    findings: Sequence[Finding]
    looked_at: LookedAt

    def at(self, level: Level) -> list[Finding]:
        """The findings of one level."""
        return [one for one in self.findings if one.level is level]
