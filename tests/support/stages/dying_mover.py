"""A program that moves jobs to the history until a statement is due, and is killed right before or after it.

Its words are the database, how many statements it does before that one, and `before` or `after`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import psycopg

from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.settings import load_settings


def move_and_die(dsn: str, before: int, is_after: bool) -> None:
    """Be killed before the statement is sent, or once it is answered."""
    left = before
    rows = Statements.rows

    def counted(self: Statements, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0 and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = rows(self, *args)
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Statements.rows = counted  # type: ignore[method-assign, assignment]
    with psycopg.connect(dsn, autocommit=True) as connection:
        moving = HistoryMoving(load_settings())
        while True:
            moving.move(connection)


if __name__ == "__main__":
    move_and_die(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after")
