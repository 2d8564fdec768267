"""The operator's page in this process, with users that a test names, and forms as a browser sends them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx2
import psycopg
from starlette.testclient import TestClient
from support.rows.jobs import EMPTIED

from queue_workflows.web import Web, create_app

HOST = "http://localhost"
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
_TAG = re.compile(r"<[^>]*>")
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}

Fields = list[tuple[str, str]]
Answer = httpx2.Response


@dataclass
class OperatorsPage:
    """The page as one user's browser has it."""

    app: Web
    client: TestClient
    user: str

    def as_user(self, user: str) -> OperatorsPage:
        """The page in another user's browser."""
        return OperatorsPage(self.app, self.client, user)

    def get(self, path: str, **words: Any) -> Answer:
        """Follow a link."""
        query = f"?{urlencode(words, doseq=True)}" if words else ""
        return self.client.get(path + query, headers={"X-User": self.user}, follow_redirects=False)

    def post(self, path: str, fields: Fields, **headers: str) -> Answer:
        """Send a form, from our own page unless a header says otherwise."""
        sent = {
            "X-User": self.user,
            **FORM,
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return self.client.post(path, content=urlencode(fields), headers=sent, follow_redirects=False)

    def preview(self, act: str, *targets: str, **words: Any) -> Answer:
        """Look at what an act would be."""
        return self.get("/act/preview", act=act, target=list(targets), **words)

    def confirm(self, seen: Answer, **typed: str) -> Answer:
        """Press the button of a preview, with what was typed into it."""
        return self.post("/act", [*hidden_of(seen), *typed.items()])

    def act(self, act: str, *targets: str, reason: str = "because", **words: Any) -> Answer:
        """Look, and press the button."""
        typed = {name: str(value) for name, value in words.items() if name != "where"}
        return self.confirm(self.preview(act, *targets, **words), reason=reason, **typed)


def hidden_of(answer: Answer) -> Fields:
    """What a page's form sends without anybody having typed it."""
    return [(html.unescape(name), html.unescape(value)) for name, value in _HIDDEN.findall(answer.text)]


def text_of(answer: Answer) -> str:
    """What a reader sees of a page, on one line."""
    body = answer.text.partition("<main")[2] or answer.text
    return " ".join(html.unescape(_TAG.sub(" ", body)).split())


@contextmanager
def served_page(
    dsn: str,
    *,
    user: str = "ada",
    authorize: Callable[[str, str, str], bool] = lambda _user, _verb, _target: True,
    **options: Any,
) -> Iterator[OperatorsPage]:
    """The page over one database, for whichever user a request names."""
    app = create_app(dsn, authorize=authorize, user=lambda request: request.headers.get("x-user"), **options)
    # A busy machine is no reason to give a look up; what is about that says so.
    app.readers.look_within_s = 60.0
    with TestClient(app, base_url=HOST) as client:
        yield OperatorsPage(app, client, user)
    app.close()


def everything(conn: psycopg.Connection) -> dict[str, list[Any]]:
    """All rows that an act could change."""
    tables = (*EMPTIED, "concurrency_limits", "rate_limits", "schedules", "worker_control_clock")
    return {
        table: conn.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY to_jsonb(t)::text").fetchall()
        for table in tables
    }


def audited(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What the audit log has, oldest first: actor, act, subject and reason."""
    return conn.execute("SELECT actor, action, subject_id, reason FROM audit_log ORDER BY id").fetchall()
