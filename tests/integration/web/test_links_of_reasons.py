"""Behind each reason on a page stands the way to its cause, which is there."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from support.rows.every_state import LIMIT, EveryState
from support.rows.jobs import Jobs
from support.servers.web_page import OperatorsPage, text_of

_REASONS = re.compile(r'<ol class="reasons.*?</ol>', re.DOTALL)
_REASON = re.compile(r"<li>.*?</li>", re.DOTALL)
_WAY = re.compile(r'<span class="text">\s*<a href="([^"]*)"')


def ways_of(page: OperatorsPage, place: str) -> dict[str, str]:
    """Where each reason of a page leads, by its sentence."""
    answer = page.get(place)
    assert answer.status_code == 200, text_of(answer)
    ways = {}
    for listed in _REASONS.findall(answer.text):
        for reason in _REASON.findall(listed):
            way = _WAY.search(reason)
            ways[re.sub(r"<[^>]*>", "", reason).strip()] = html.unescape(way[1]) if way else "nowhere"
    return ways


def is_there(page: OperatorsPage, way: str) -> bool:
    """Whether a way leads to a page, and to the part of it that it names."""
    parts = urlsplit(way)
    answer = page.get(f"{parts.path}?{parts.query}" if parts.query else parts.path)
    return answer.status_code == 200 and (not parts.fragment or f'id="{parts.fragment}"' in answer.text)


@pytest.fixture(scope="module")
def places(full: EveryState, qwf_dsn: str) -> list[str]:
    """Every page on which something is explained."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        Jobs("ingest", connection).enqueue(limit_key=LIMIT, host_lock="disk")
        found = connection.execute("SELECT id FROM ingest_jobs ORDER BY id").fetchall()
        nodes = connection.execute("SELECT id FROM workflow_node_jobs ORDER BY id").fetchall()
        touched: list[Any] = connection.execute("SELECT run_id, node_id FROM workflow_nodes").fetchall()
    jobs = [f"/jobs/ingest:{job}" for (job,) in found] + [f"/jobs/node:{job}" for (job,) in nodes]
    runs = [f"/runs/{run}" for run in full.runs.values()]
    return ["/", *jobs, *runs, *(f"/runs/{run}/nodes/{node}" for run, node in touched)]


def test_each_reason_leads_to_a_place_that_is_there(filled: OperatorsPage, places: list[str]) -> None:
    """On the first page, of each job, each run and each node, in every state."""
    ways = {f"{place}: {said}": way for place in places for said, way in ways_of(filled, place).items()}
    there = {way: is_there(filled, way) for way in set(ways.values())}
    assert len(ways) > 50
    assert {said: way for said, way in ways.items() if not there[way]} == {}


def test_what_is_stuck_leads_to_its_cause_and_to_an_example(filled: OperatorsPage, full: EveryState) -> None:
    """The cause is what has to be mended, the example what waits for that."""
    text = filled.get("/").text
    run = full.runs["running"]
    assert f'href="/runs/{run}/answer/approve"' in text
    assert f'href="/runs/{run}">run {str(run)[:8]}</a>' in text
