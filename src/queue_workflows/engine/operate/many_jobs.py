"""Operators' verbs over many jobs: page by page, each page one short transaction.

A page's rows are locked before they are decided on, and asked again whether they match: a job that a worker
claimed, or another operator has just retried, is judged by what it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import psycopg

from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository
from queue_workflows.repositories.sql.families import INGEST, Family

PAGE: Final = 500
# What is said of a node that is not retried, as its run would not go on with it.
RUN_OVER: Final = "run_over"


class Verb(StrEnum):
    """What is done to jobs."""

    CANCEL = "cancel"
    RETRY = "retry"


def decide_named(
    connection: psycopg.Connection[Any],
    verb: Verb,
    jobs: Iterable[tuple[Family, int]],
    *,
    actor: str,
    reason: str | None,
) -> dict[tuple[str, int], str]:
    """Decide on jobs by name; what each became, those left out that the verb does not apply to."""
    by_family: dict[str, tuple[Family, list[int]]] = {}
    for family, job_id in jobs:
        by_family.setdefault(family.name, (family, []))[1].append(job_id)
    became: dict[tuple[str, int], str] = {}
    with connection.transaction():
        # Always in one order, so that two operators with the same jobs do not deadlock.
        for name, (family, ids) in sorted(by_family.items()):
            for job_id, word in _decide(connection, verb, family, ids, by=(actor, reason)).items():
                became[name, job_id] = word
    return became


def decide_matching(
    connection: psycopg.Connection[Any],
    verb: Verb,
    wanted: JobFilter,
    *,
    actor: str,
    reason: str | None,
    page: int = PAGE,
) -> Iterator[Counter[str]]:
    """Decide on all jobs that match now, oldest first; how many became what, of each page once committed."""
    selecting = SelectingRepository(connection)
    for family in wanted.families():
        # What is enqueued from now on is not meant: a busy producer would keep this going for ever.
        last, after = selecting.last_id(family), 0
        while after < last:
            with connection.transaction():
                ids = selecting.lock_page(family, wanted, after=after, limit=page)
                words = _decide(connection, verb, family, ids, by=(actor, reason))
            # Locked rows match, so a node's run is all that a verb can fail at.
            yield Counter(words.get(job_id, RUN_OVER) for job_id in ids)
            if len(ids) < page:
                break
            after = ids[-1]
        if verb is Verb.RETRY:
            yield from _retry_moved(connection, family, wanted, by=(actor, reason), page=page)


def _retry_moved(
    connection: psycopg.Connection[Any],
    family: Family,
    wanted: JobFilter,
    *,
    by: tuple[str, str | None],
    page: int,
) -> Iterator[Counter[str]]:
    """Retry what matches in the history by months; each is brought back by that."""
    selecting, after = SelectingRepository(connection), 0
    while ids := selecting.moved_page(family, wanted, after=after, limit=page):
        with connection.transaction():
            words = _decide(connection, Verb.RETRY, family, ids, by=by)
        yield Counter(words.values())
        after = ids[-1]


def _decide(
    connection: psycopg.Connection[Any],
    verb: Verb,
    family: Family,
    ids: list[int],
    *,
    by: tuple[str, str | None],
) -> Mapping[int, str]:
    actor, reason = by
    repository: ClaimableRepository[Any, Any] = (
        IngestJobRepository(connection) if family is INGEST else NodeJobRepository(connection)
    )
    if verb is Verb.CANCEL:
        became = repository.cancel_many(ids, actor=actor, reason=reason)
        return {job_id: status.value for job_id, status in became.items()}
    return dict.fromkeys(repository.retry_many(ids, actor=actor, reason=reason), "retried")
