"""What the attempts of one worker have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.hooks.attempt.at_seal import AtSeal
from queue_workflows.hooks.files import Digests
from queue_workflows.hooks.plugins.cache import PluginCache
from queue_workflows.host.commands.client import Spawner
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob


@dataclass(frozen=True, slots=True)
class HookTerms:
    """What holds for all hooks of one worker."""

    dirs: tuple[Path, ...]
    data_dir: Path
    host_label: str
    environ: Mapping[str, str]
    grace_s: float
    dsns: tuple[str, ...]
    worker_id: str
    lease_s: float
    limits: PayloadLimits


@dataclass(frozen=True, slots=True)
class Reading:
    """What all readers of a hook's output share: checksums that are known, and the turn to parse a line."""

    digests: Digests = field(default_factory=Digests)
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class AttemptTools:
    """What the attempts of one worker share; `ask` puts a question for a job as long as that is held."""

    terms: HookTerms
    ask: Callable[[ClaimedNodeJob, Callable[[psycopg.Connection[Any]], Any]], Any]
    shelf: PluginCache
    spawner: Spawner
    redactor: Redactor
    at_seal: AtSeal
    locks: KeptLocks
    machine_id: Callable[[ClaimedNodeJob], int]
    reading: Reading = field(default_factory=Reading)
