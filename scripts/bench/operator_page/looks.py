"""Pages of the real app, asked in this process in rounds that take turns, beside a bare look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any, Final

import httpx
import psycopg

from bench.harness.figures import Figure, percentile
from bench.harness.servers import cpu_s
from queue_workflows.web import Web, create_app
from queue_workflows.web.serving import freeze_what_is_loaded

USER: Final = "ada"
BOUND_MS: Final = 100.0
_HOST: Final = "http://localhost"
# What a reader begins each look with, whatever the page.
_BEGINS: Final = "set_config"


@dataclass
class Seen:
    """What one address came to, look by look."""

    ms: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    size: int = 0
    # What this process and the server worked for it, where the server is on this machine.
    worked_s: list[float] = field(default_factory=list)
    refusals: dict[int, int] = field(default_factory=dict)

    @property
    def statements(self) -> int:
        """Of the look in the middle: a doctor's report that is made beside a look asks some fifty more."""
        return median_low(self.asked)

    def _rest(self) -> str:
        """Its statements, and the processor time of a look, which a busy machine leaves alone."""
        worked = f"{median(self.worked_s) * 1000:,.1f} ms of a processor, " if any(self.worked_s) else ""
        return f"{worked}{self.statements} statements"

    def figure(self, measure: str, what: str) -> Figure:
        """Its slowest but for one in twenty, beside the bound."""
        slow = percentile(self.ms, 0.95)
        said = f"{what}: 95 %; median {median(self.ms):,.1f} ms, {self._rest()}"
        for status, count in self.refusals.items():
            said += f", {count} of {len(self.ms)} refused as {status}"
        return Figure(measure, said, slow, "ms", "the bound", BOUND_MS, slow / BOUND_MS, 1.0, True)


@contextmanager
def open_page(dsn: str) -> Iterator[Web]:
    """The app for one user who may look at all."""
    app = create_app(dsn, authorize=lambda _user, _verb, _target: True, user=lambda _request: USER)
    # As `qwf web` does.
    freeze_what_is_loaded()
    try:
        yield app
    finally:
        app.close()


def looked_at(dsn: str, places: Mapping[str, str], rounds: int) -> tuple[dict[str, Seen], Seen]:
    """Every address once a round, and a bare `SELECT 1` through the same readers."""
    with (
        open_page(dsn) as app,
        psycopg.connect(dsn, autocommit=True) as eyes,
        _counted() as asked,
    ):
        return asyncio.run(_rounds(app, places, rounds, asked, eyes))


async def _rounds(
    app: Web,
    places: Mapping[str, str],
    rounds: int,
    asked: list[str],
    eyes: psycopg.Connection[Any],
) -> tuple[dict[str, Seen], Seen]:
    seen, bare = {name: Seen() for name in places}, Seen()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=_HOST, timeout=60) as client:
        # Not measured: the first look of each reader connects, and that at a page loads its template.
        for place in places.values():
            await client.get(place)
        for _ in range(rounds):
            for name, place in places.items():
                worked = _worked_s(eyes)
                await _look(client, place, seen[name], asked)
                seen[name].worked_s.append(_worked_s(eyes) - worked)
            began = time.perf_counter()
            await app.readers.ask(lambda conn: conn.execute("SELECT 1").fetchone())
            bare.ms.append((time.perf_counter() - began) * 1000)
    return seen, bare


def _worked_s(eyes: psycopg.Connection[Any]) -> float:
    """Processor time of this process and of the server's so far."""
    servers = cpu_s(eyes)
    return 0.0 if servers is None else servers + time.process_time()


async def _look(client: httpx.AsyncClient, place: str, seen: Seen, asked: list[str]) -> None:
    asked.clear()
    began = time.perf_counter()
    answer = await client.get(place)
    seen.ms.append((time.perf_counter() - began) * 1000)
    seen.asked.append(len(asked))
    seen.size = len(answer.content)
    if answer.status_code != 200:
        seen.refusals[answer.status_code] = seen.refusals.get(answer.status_code, 0) + 1


def figures_of(measure: str, seen: Mapping[str, Seen], bare: Seen) -> Sequence[Figure]:
    """A line for each address, and last that of the bare look."""
    return [
        *(one.figure(measure, name) for name, one in seen.items()),
        Figure(
            *(measure, f"a bare look at SELECT 1: 95 %; median {median(bare.ms):,.1f} ms, 1 statement"),
            *(percentile(bare.ms, 0.95), "ms"),
        ),
    ]


@contextmanager
def _counted() -> Iterator[list[str]]:
    """The statements that this process asks meanwhile."""
    asked: list[str] = []
    before = psycopg.Cursor.execute

    def counted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        if _BEGINS not in text:
            asked.append(text)
        return before(cursor, query, *more, **named)

    psycopg.Cursor.execute = counted  # type: ignore[method-assign, assignment]
    try:
        yield asked
    finally:
        psycopg.Cursor.execute = before  # type: ignore[method-assign]
