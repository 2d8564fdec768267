"""What a form of the page says, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

from queue_workflows.errors import FilterRefused, PayloadError
from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.acts.form import MOST_BYTES, MOST_FIELDS, fields_of, read_form


def request(
    body: bytes = b"",
    *,
    query: str = "",
    method: str = "POST",
    kind: str | None = "application/x-www-form-urlencoded",
    pieces: int = 1_000,
) -> Request:
    """A request with this body, which comes in pieces."""
    parts: Iterator[bytes] = iter([body[at : at + pieces] for at in range(0, len(body), pieces)] or [b""])
    left = len(body)

    async def receive() -> dict[str, Any]:
        nonlocal left
        part = next(parts)
        left -= len(part)
        return {"type": "http.request", "body": part, "more_body": left > 0}

    headers = [] if kind is None else [(b"content-type", kind.encode())]
    scope = {"type": "http", "method": method, "path": "/act", "query_string": query.encode()}
    return Request({**scope, "headers": headers, "server": ("localhost", 80), "scheme": "http"}, receive)


def read(body: bytes = b"", **more: Any) -> list[tuple[str, str]]:
    """The fields."""
    return asyncio.run(fields_of(request(body, **more)))


def refusal(body: bytes = b"", **more: Any) -> int:
    """The status with which a form is refused."""
    with pytest.raises(RequestRefused) as caught:
        asyncio.run(read_form(request(body, **more), ACTS))
    return caught.value.status


def test_fields_keep_their_order_and_their_repetitions() -> None:
    """Also where the body comes byte by byte, and from a query as from a body."""
    said = "act=job.cancel&target=ingest%3A1&target=ingest%3A2&reason=a+b%C3%A9&where="
    fields = [("act", "job.cancel"), ("target", "ingest:1"), ("target", "ingest:2")]
    fields += [("reason", "a bé"), ("where", "")]
    assert read(said.encode(), pieces=1) == fields
    assert read(query=said, method="GET", kind=None) == fields


@pytest.mark.parametrize("kind", [None, "application/json", "multipart/form-data; boundary=x", "text/plain"])
def test_another_kind_of_body_is_refused(kind: str | None) -> None:
    """What a page of ours would never send."""
    assert refusal(b"act=job.cancel", kind=kind) == 415


def test_what_is_too_much_is_refused_before_it_is_kept() -> None:
    """Bytes and fields have a bound, which is not met by what is just within."""
    assert refusal(b"a=" + b"x" * MOST_BYTES, pieces=65_536) == 413
    assert refusal(b"&".join([b"a=1"] * (MOST_FIELDS + 1)), pieces=65_536) == 413
    assert len(read(b"&".join([b"a=1"] * MOST_FIELDS), pieces=65_536)) == MOST_FIELDS


@pytest.mark.parametrize(
    "body",
    [
        b"act=job.cancel&target=%ff",
        "act=job.cancel&target=é".encode(),
        b"act=job.cancel&target=ingest:1%00",
        b"act=job.cancel&act=job.retry&target=ingest:1",
        b"act=job.cancel&target=ingest:1&reason=" + b"x" * 1_001,
        b"act=job.cancel&where=" + b"x" * 4_097,
        b"act=nothing&target=ingest:1",
        b"act=job.cancel",
        b"act=job.cancel&target=ingest:1&where=queue:x",
        b"act=run.unpin&where=workflow:x",
        b"act=schedule.trigger&target=a&target=b",
        b"",
    ],
)
def test_what_cannot_be_meant_is_refused(body: bytes) -> None:
    """No text, said twice, too long, unknown, or of nothing."""
    assert refusal(body) == 400


def test_things_are_written_in_their_one_way() -> None:
    """So that `authorize` is asked about exactly what is acted on."""
    act, form = asyncio.run(
        read_form(request(b"act=job.cancel&target=ingest:007&target=+ingest:7+&target=node:1&x=y"), ACTS)
    )
    assert (act.name, form.asked.targets, form.asked.words) == (
        "job.cancel",
        ("ingest:7", "node:1"),
        {"x": "y"},
    )
    run = "0192F3A0-7B1C-7DEF-8123-456789ABCDEF"
    _, form = asyncio.run(read_form(request(f"act=run.cancel&target=run:{run}".encode()), ACTS))
    assert form.asked.authorized_targets == (run.lower(),)
    _, form = asyncio.run(read_form(request(b"act=job.retry&where=++newer:24h++queue:fetch"), ACTS))
    assert form.asked.authorized_targets == ("where queue:fetch newer:1d",)


def test_a_filter_says_what_is_wrong_with_it() -> None:
    """A typo, one that is empty, and a name that is none."""
    for body in (b"act=job.retry&where=stauts:failed", b"act=job.retry&where="):
        with pytest.raises(FilterRefused):
            asyncio.run(read_form(request(body), ACTS))
    with pytest.raises(PayloadError):
        asyncio.run(read_form(request(b"act=job.retry&target=7"), ACTS))
