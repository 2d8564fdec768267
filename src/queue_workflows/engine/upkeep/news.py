"""Events that were emitted, and children that have ended: what waits for them is due."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from queue_workflows.repositories.durable.waits import NewsRepository

AT_ONCE: Final = 500


def wake_by_news(connection: psycopg.Connection[Any]) -> bool:
    """Have those that wait for the oldest news due; whether there may be more.

    A transaction of its own: what it looked for is locked until nobody need be told of it again.
    """
    with connection.transaction():
        repository = NewsRepository(connection)
        news = repository.news()
        if news:
            repository.wake(list(news.values()))
            repository.told(list(news))
    return len(news) >= AT_ONCE
