"""What every connection of ours is pinned to, whatever the server's or the role's defaults are.

Session settings travel as startup options: they cost no round trip and hold from the first statement on.
Through a transaction-pooling proxy they would leak into the sessions of others, and some proxies refuse
them: there only the client's side is pinned. What the user's DSN, PGOPTIONS or libpq's other variables say
wins, but for the style of times: `route.connect` sees that it is one that can be read, or refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import pq

from queue_workflows.settings import Settings

NAME_BYTES: Final = 63
# One plan per statement, planned once: to plan a claim takes as long as to run it. Made while a table was
# small, a plan that reads all of it would stay in the session while the table grows, until somebody analyzes
# it. And where that was done while all jobs were finished, the planner expects none that is queued: a bitmap
# of them, sorted, seems as good as a walk in order, and each claim would sort the whole queue.
PLANNER: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}
_VARIABLES: Final = {
    option.keyword.decode(): option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar
}


@dataclass(frozen=True)
class Timeouts:
    """The bounds of a connection, in seconds; 0 is none."""

    connect_s: int = 10
    lock_s: float = 10
    idle_in_transaction_s: float = 60
    client_check_s: float = 10

    @classmethod
    def from_settings(cls, settings: Settings) -> Timeouts:
        """The bounds as the user set them."""
        return cls(
            connect_s=settings.connect_timeout_s,
            lock_s=settings.lock_timeout_s,
            idle_in_transaction_s=settings.idle_in_transaction_session_timeout_s,
            client_check_s=settings.client_connection_check_interval_s,
        )


def application_name(role: str, host_label: str) -> str:
    """`qwf:worker@host`: what operators see in pg_stat_activity, in the 63 ASCII bytes it keeps."""
    return f"qwf:{role}@{host_label}".encode("ascii", "replace")[:NAME_BYTES].decode()


def pin(
    params: Mapping[str, str],
    *,
    name: str,
    timeouts: Timeouts,
    options: bool = True,
    hot: bool = False,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The parameters to connect with; without `options` where a pooling proxy in between takes none.

    `hot` is for a worker's own connection, which runs nothing but prepared statements that look up by index.
    """
    environ = os.environ if environ is None else environ
    client = {
        # libpq's own way to let a name of the user's win.
        "fallback_application_name": name,
        "target_session_attrs": "read-write",
        "client_encoding": "UTF8",
        "connect_timeout": str(timeouts.connect_s),
        "keepalives": "1",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "30000",
    }
    pinned = {word: value for word, value in client.items() if not environ.get(_VARIABLES.get(word, ""))}
    pinned.update(params)
    if options:
        given = params.get("options") or environ.get("PGOPTIONS", "")
        pinned["options"] = _options(_session_settings(timeouts) | (PLANNER if hot else {}), given)
    return pinned


def _session_settings(timeouts: Timeouts) -> dict[str, str]:
    def milliseconds(seconds: float) -> str:
        return str(round(seconds * 1000))

    return {
        "timezone": "UTC",
        # The one style of times that the driver, and we ourselves, can read.
        "datestyle": "ISO",
        "default_transaction_isolation": "read committed",
        "lock_timeout": milliseconds(timeouts.lock_s),
        "idle_in_transaction_session_timeout": milliseconds(timeouts.idle_in_transaction_s),
        "idle_session_timeout": "0",
        "client_connection_check_interval": milliseconds(timeouts.client_check_s),
    }


def _options(ours: Mapping[str, str], given: str) -> str:
    """Ours, then the user's; what the user names is left out, so that a value of ours cannot refuse."""
    named = _named_in(given)
    mine = [f"-c {word}={_escaped(value)}" for word, value in ours.items() if word not in named]
    return " ".join([*mine, given.strip()]).strip()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _named_in(options: str) -> set[str]:
    """The settings that a startup option string names: `-c name=…`, `-cname=…` or `--name=…`."""
    words = iter(_words(options))
    named = set()
    for word in words:
        if word == "-c":
            setting = next(words, "")
        elif word.startswith(("-c", "--")):
            setting = word[2:]
        else:
            continue
        named.add(setting.partition("=")[0].replace("-", "_").lower())
    return named


def _words(options: str) -> list[str]:
    """Split as the server does: at blanks, with a backslash to escape."""
    words: list[str] = []
    word = ""
    letters = iter(options)
    for letter in letters:
        if letter.isspace():
            words.append(word)
            word = ""
        else:
            word += next(letters, "") if letter == "\\" else letter
    words.append(word)
    return [word for word in words if word]
