"""What is said to a connection that cannot be used, before anything is sent on it."""

from __future__ import annotations

from typing import Final

from queue_workflows.errors import UnusableConnection

WANTED: Final = (
    "a SQLAlchemy Session or Connection on postgresql+psycopg, or a psycopg 3 connection;"
    " one of psycopg2, asyncpg or Django, and SQLAlchemy on these, will do as well"
)


def kind_name(handle: object) -> str:
    """A connection's class as its users write it."""
    kind = type(handle)
    return f"{kind.__module__}.{kind.__qualname__}"


def refusal(handle: object, state: str = "", *, advice: str | None = None) -> UnusableConnection:
    """That a connection is of no kind, or in no state, that will do."""
    return UnusableConnection(
        kind_name(handle), state, wanted=f"wanted is {WANTED}; it must be open", advice=advice
    )


def check_flow(handle: object) -> None:
    """Refuse a verb that nobody awaits on a connection that must be awaited; nothing was sent."""
    from queue_workflows.repositories.sql.drivers.flow import is_flowing

    if not is_flowing():
        raise UnusableConnection(
            kind_name(handle),
            "asynchronous",
            wanted="this verb takes a synchronous one",
            advice="await the verb's awaitable form, the same name with an `a` in front: "
            "`await aenqueue_ingest_job(…)`, `await repository.afetch(…)`; what has none takes a synchronous "
            "connection alone",
        )


def must_be_awaited(handle: object) -> UnusableConnection:
    """That an awaitable verb was given a connection which nobody can await."""
    return UnusableConnection(
        kind_name(handle),
        "synchronous",
        wanted="an awaitable verb takes an asynchronous one",
        advice="call the verb without the `a` in front of its name, or bring a psycopg AsyncConnection, "
        "a SQLAlchemy AsyncSession or AsyncConnection, or a connection of asyncpg",
    )
