"""What a worker gives back when functions of its jobs run on until its process ends.

    end what those jobs started ──> write what is over ──> say goodbye ──> send the message ──> end, or exec

A job that is given back may be begun elsewhere as soon as that is committed, while its function still runs
here. So the statement is the last that the process does: it is sent and no answer is waited for, and the
process is gone before the server has run it. So its answer has to be short, however many jobs it is about:
one that the server cannot send fails the statement. If it does not arrive, or is refused, the leases lapse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import psycopg

from queue_workflows.repositories.claims.end import Ending, unheard_end
from queue_workflows.repositories.limits.slots import unheard_free
from queue_workflows.repositories.sql.pipeline import send
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.states import JobStatus

# How long the kernel may take to accept it.
_SENT_WITHIN_S: Final = 1.0
_BEGIN_AGAIN: Final = frozenset({JobStatus.QUEUED, JobStatus.SCHEDULED})


def begins_again(ending: Ending) -> bool:
    """Whether another attempt may follow at once, or soon."""
    return ending.status in _BEGIN_AGAIN


def last_message(
    terms: ClaimTerms, connection: psycopg.Connection[Any], endings: Sequence[Ending]
) -> Callable[[], None]:
    """What sends these endings, with the slots of their jobs, in one transaction."""
    if not endings:
        return lambda: None
    asked = [unheard_end(terms.repository(connection).family, endings)]
    if slots := terms.kept.of([each.fence for each in endings]):
        asked.insert(0, unheard_free(slots))
    return partial(send, connection, asked, within_s=_SENT_WITHIN_S)
