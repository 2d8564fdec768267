"""Which requests are let through before anybody asks for their user."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from queue_workflows.web.access.bearer import BearerToken
from queue_workflows.web.access.requests import (
    host_of,
    is_from_our_page,
    is_known_host,
    is_loopback,
    may_be_program,
)


def request(method: str = "POST", scheme: str = "http", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        {
            "type": "http",
            "method": method,
            "scheme": scheme,
            "path": "/act",
            "query_string": b"",
            "server": ("127.0.0.1", 8427),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
    )


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("127.0.0.1:8427", "127.0.0.1"),
        ("LocalHost", "localhost"),
        ("[::1]:8427", "::1"),
        ("[::1]", "::1"),
        ("evil.example:8427", "evil.example"),
        ("", ""),
    ],
)
def test_the_port_is_no_part_of_a_host(given: str, host: str) -> None:
    """A name is compared without its port and in lower case."""
    assert host_of(request(host=given)) == host


def test_a_name_that_leads_here_from_elsewhere_is_refused() -> None:
    """A page of the internet that lets a name of its own lead to this machine finds nobody at home."""
    names = frozenset({"localhost", "127.0.0.1"})
    assert is_known_host(request(host="localhost:8427"), names)
    assert not is_known_host(request(host="evil.example:8427"), names)
    assert not is_known_host(request(), names)
    assert is_known_host(request(host="evil.example"), None)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "", "SAME-ORIGIN "])
def test_only_a_page_of_ours_may_change_something(site: str) -> None:
    """What a browser says of where a request comes from beats an origin that looks right."""
    assert not is_from_our_page(
        request(sec_fetch_site=site, host="localhost:8427", origin="http://localhost:8427")
    )


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://box:8427", True),
        ("http://BOX:8427", True),
        ("https://box:8427", False),
        ("http://box", False),
        ("http://box:8427.evil.example", False),
        ("null", False),
        (None, False),
    ],
)
def test_without_that_word_the_origin_has_to_be_ours(origin: str | None, is_ours: bool) -> None:
    """A browser that speaks plain HTTP to a name sends its origin alone; what sends neither is no browser."""
    headers = {"host": "box:8427"} | ({} if origin is None else {"origin": origin})
    assert is_from_our_page(request(**headers)) is is_ours


@pytest.mark.parametrize(
    ("host", "is_safe"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("box", False), ("", False)],
)  # fmt: skip
def test_what_only_this_machine_can_reach(host: str, is_safe: bool) -> None:
    """Every address but loopback can be reached by others."""
    assert is_loopback(host) is is_safe


@pytest.mark.parametrize(
    ("headers", "is_let_through"),
    [
        ({}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"origin": "http://box:8427"}, True),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://box:8427"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
    ],
)
def test_a_program_is_no_browser_that_another_site_sends(
    headers: dict[str, str], is_let_through: bool
) -> None:
    """What says that it is a browser has to come from our page."""
    assert may_be_program(request(host="box:8427", **headers)) is is_let_through


def test_only_the_token_as_a_bearers_is_its_user() -> None:
    """No other scheme, no other token, no part of it, and nothing that is not even ASCII."""
    bearer = BearerToken("ann@box")
    good = bearer.token
    assert bearer.user_of(request(authorization=f"Bearer {good}")) == "ann@box"
    assert bearer.user_of(request(authorization=f"bearer  {good}")) == "ann@box"
    for given in (
        "",
        "Bearer",
        f"Basic {good}",
        good,
        f"Bearer {good[:-1]}",
        f"Bearer {good}x",
        "Bearer \xff",
    ):
        assert bearer.user_of(request(authorization=given)) is None
    assert BearerToken("ann@box").token != good
