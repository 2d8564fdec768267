"""What every measure is given: a server, how much to do, and where to say how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from bench.harness.figures import Figure
from bench.harness.servers import Server


@dataclass(frozen=True)
class Bench:
    """`quick` is for a look at whether all still runs: its figures are rough."""

    server: Server
    quick: bool
    say: Callable[[str], None]
    # The peers that are to be measured too, with their versions.
    peers: Mapping[str, str] = field(default_factory=dict)
    # Of a script with options of its own, what they say.
    amounts: Mapping[str, int] = field(default_factory=dict)

    def much(self, full: int, quick: int) -> int:
        """How much to do."""
        return quick if self.quick else full

    @contextmanager
    def database(self) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
        """A new database and a connection to it."""
        dsn = self.server.database()
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield dsn, connection


Measure = Callable[[Bench], Sequence[Figure]]
