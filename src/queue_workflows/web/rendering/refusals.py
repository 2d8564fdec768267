"""What a request gets instead of what it asked for: one sentence, what to do, and a status that is true."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import psycopg

from queue_workflows.db.connections.failures import classify_failure
from queue_workflows.errors import (
    AccessRefused,
    DatabaseError,
    ExitCode,
    FilterRefused,
    PayloadError,
    QwfError,
    SchemaError,
    UnknownHost,
    UnknownJob,
    UnknownNode,
    UnknownRun,
    UnknownSchedule,
    UnknownWorker,
    UnknownWorkflow,
)
from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.database.readers import Busy
from queue_workflows.web.live.hub import TooManyStreams
from queue_workflows.web.rendering import texts

_log = logging.getLogger(__name__)

COME_BACK_S: Final = 3
_LOCKED: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
_UNKNOWN: Final = (
    UnknownHost,
    UnknownJob,
    UnknownNode,
    UnknownRun,
    UnknownSchedule,
    UnknownWorker,
    UnknownWorkflow,
)


@dataclass(frozen=True)
class Refusal:
    """A status, what is so, and what to do; `come_back_s` has the browser look again by itself.

    One of a filter stands at the field in which it was written, so that a typo is mended where it is.
    """

    status: int
    title: str
    text: str = ""
    advice: str = ""
    come_back_s: int | None = None
    is_of_filter: bool = False


NOT_HERE: Final = Refusal(404, texts.NOT_HERE)
SIGNED_OUT: Final = Refusal(401, texts.SIGNED_OUT, advice=texts.SIGNED_OUT_ADVICE)
SENT_BY_NOBODY: Final = Refusal(401, texts.SENT_BY_NOBODY, advice=texts.SENT_BY_NOBODY_ADVICE)
DENIED: Final = Refusal(403, texts.DENIED)
ACT_DENIED: Final = Refusal(403, texts.ACT_DENIED)
ELSEWHERE: Final = Refusal(403, texts.ELSEWHERE, advice=texts.ELSEWHERE_ADVICE)
UNKNOWN_HOST: Final = Refusal(421, texts.UNKNOWN_HOST)
NO_NUL: Final = Refusal(400, texts.NO_NUL)
READ_ONLY: Final = Refusal(403, texts.READ_ONLY)


def refusal_of(exc: BaseException) -> Refusal:
    """What an exception means for the request that met it."""
    if isinstance(exc, psycopg.errors.QueryCanceled):
        return Refusal(422, texts.TOO_BROAD, advice=texts.TOO_BROAD_ADVICE)
    if isinstance(exc, RecursionError):
        return Refusal(422, texts.TOO_DEEP, advice=texts.TOO_DEEP_ADVICE)
    if isinstance(exc, _LOCKED):
        return Refusal(409, texts.LOCKED, advice=texts.LOCKED_ADVICE)
    if isinstance(exc, RequestRefused):
        return Refusal(exc.status, exc.message, advice=exc.advice or "")
    known = exc if isinstance(exc, QwfError) else _of_driver(exc)
    if isinstance(known, QwfError):
        return _of_ours(known)
    _log.error("a page failed", exc_info=exc)
    return Refusal(500, texts.FAILED, advice=texts.FAILED_ADVICE)


def _of_ours(exc: QwfError) -> Refusal:
    if isinstance(exc, _UNKNOWN):
        return Refusal(404, exc.message, advice=exc.advice or texts.GONE_ADVICE)
    if isinstance(exc, (SchemaError, Busy, TooManyStreams)):
        return Refusal(503, exc.message, advice=exc.advice or "", come_back_s=COME_BACK_S)
    if isinstance(exc, AccessRefused):
        return Refusal(500, exc.message, advice=exc.advice or "")
    if isinstance(exc, DatabaseError):
        return Refusal(503, texts.AWAY, exc.message, exc.advice or texts.AWAY_ADVICE, COME_BACK_S)
    is_usage = isinstance(exc, PayloadError) or exc.exit_code == ExitCode.USAGE
    is_of_filter = isinstance(exc, FilterRefused)
    return Refusal(400 if is_usage else 409, exc.message, advice=exc.advice or "", is_of_filter=is_of_filter)


def _of_driver(exc: BaseException) -> QwfError | None:
    return classify_failure(exc, "") if isinstance(exc, psycopg.Error) else None
