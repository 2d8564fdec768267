"""How much a worker fetches of what others put aside, and when: told the time, without a database."""

from __future__ import annotations

import math

from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.roles.worker.common.fetch_size import EVERY_S, PER_HAND, FetchSize


def test_a_page_is_what_it_had_of_the_last_one_twice_over() -> None:
    """And what it can do in some seconds; who had nothing of it asks for few."""
    it = FetchSize(2)
    assert it.is_due(0, 100.0)
    assert it.page(0, 100.0) == 2 * PER_HAND
    it.fetched(20, 0, 100.0, 0.001)
    assert it.was_full
    assert it.page(20, 100.5) == 40
    assert it.page(20, 400.0) == 2 * PER_HAND
    assert it.page(10**6, 100.1) < 10**5


def test_the_next_page_is_fetched_as_soon_as_it_runs_dry() -> None:
    """Unless others took all of it: then a little later each time, up to a second."""
    it = FetchSize(1)
    it.fetched(10, 0, 100.0, 0.001)
    assert it.is_due(1, 100.0)
    assert not it.is_due(0, 100.0)
    pauses = []
    for at in range(101, 120):
        it.fetched(10, 0, float(at), 0.001)
        pauses.append(it.due_in(float(at)))
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == EVERY_S


def test_who_finds_nothing_looks_about_once_a_second() -> None:
    """Whatever it does meanwhile, and less often where the look itself takes long."""
    it = FetchSize(1)
    it.fetched(0, 0, 100.0, 0.001)
    assert not it.is_due(5, 100.9)
    assert it.is_due(0, 101.0)
    assert it.due_in(100.0) == math.inf
    it.fetched(0, 0, 101.0, 0.2)
    assert not it.is_due(0, 120.9)
    assert it.is_due(0, 121.0)


def test_a_page_is_never_longer_than_one_may_be() -> None:
    """However many jobs the worker has at once."""
    assert FetchSize(2_000).page(0, 1.0) == LONGEST_PAGE
