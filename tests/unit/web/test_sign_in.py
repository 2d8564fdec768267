"""Signing in by the printed address: once, for a cookie that outlives the program and cannot be made up."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from queue_workflows.errors import ConfigurationError
from queue_workflows.web.access.further_token import LASTS_S, further_token
from queue_workflows.web.access.sign_in import COOKIE_LASTS_S, SignIn, kept_key

KEY = b"k" * 32


def request(query: str = "", cookie: str = "") -> Request:
    headers = [(b"host", b"localhost:8427")] + ([(b"cookie", cookie.encode())] if cookie else [])
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/jobs",
            "query_string": query.encode(),
            "server": ("localhost", 8427),
            "headers": headers,
        }
    )


def cookie_of(response: Response) -> str:
    return response.headers["set-cookie"].partition(";")[0]


def test_the_token_is_good_once() -> None:
    """Whoever reads the address later, in a history or a log, is not signed in by it."""
    sign_in = SignIn("ann@box", KEY)
    way = f"token={sign_in.token}&q=status%3Afailed"
    first = sign_in.take_token(request(way))
    assert first is not None
    assert first.status_code == 303
    assert first.headers["location"] == "http://localhost:8427/jobs?q=status%3Afailed"
    assert {"HttpOnly", "SameSite=strict"} <= set(first.headers["set-cookie"].split("; "))
    assert sign_in.take_token(request(way)) is None
    assert sign_in.token is None


def test_a_wrong_token_leaves_the_right_one_good() -> None:
    """A guess must not lock out the user that has the address."""
    sign_in = SignIn("ann@box", KEY)
    token = sign_in.token
    assert sign_in.take_token(request("token=guess")) is None
    assert sign_in.take_token(request("token=%C3%A9")) is None
    assert sign_in.take_token(request("token=")) is None
    assert sign_in.take_token(request(f"token={token}")) is not None


def test_a_cookie_is_good_after_a_restart() -> None:
    """A page that is open goes on when the program is started again with the key that it kept."""
    before = SignIn("ann@box", KEY)
    response = before.take_token(request(f"token={before.token}"))
    assert response is not None
    cookie = cookie_of(response)
    assert SignIn("ann@box", KEY).user_of(request(cookie=cookie)) == "ann@box"
    assert SignIn("ann@box", b"x" * 32).user_of(request(cookie=cookie)) is None
    assert SignIn("bob@box", KEY).user_of(request(cookie=cookie)) is None


def test_a_cookie_is_good_for_one_page() -> None:
    """Another page of this machine has the same key, and is sent the same cookies."""
    one = SignIn("ann@box", KEY, good_for="8427 production")
    response = one.take_token(request(f"token={one.token}"))
    assert response is not None
    cookie = cookie_of(response)
    assert one.user_of(request(cookie=cookie)) == "ann@box"
    for other in ("8428 production", "8427 rehearsal", ""):
        assert SignIn("ann@box", KEY, good_for=other).user_of(request(cookie=cookie)) is None


def test_a_cookie_ends() -> None:
    """A week later, and with any other end than the one that was signed, it is no cookie of ours."""
    now = [1_000.0]
    sign_in = SignIn("ann@box", KEY, now=lambda: now[0])
    response = sign_in.take_token(request(f"token={sign_in.token}"))
    assert response is not None
    name, _, value = cookie_of(response).partition("=")
    signature = value.partition(".")[2]
    assert sign_in.user_of(request(cookie=f"{name}={value}")) == "ann@box"
    assert sign_in.user_of(request(cookie=f"{name}=99999999999.{signature}")) is None
    assert sign_in.user_of(request(cookie=f"{name}=nonsense")) is None
    assert sign_in.user_of(request(cookie=f"{name}=.")) is None
    now[0] += COOKIE_LASTS_S + 1
    assert sign_in.user_of(request(cookie=f"{name}={value}")) is None


class TestAnotherBrowser:
    """Who may read the key has a way in while the page runs, for one browser at a time."""

    @staticmethod
    def page(port: int = 8427, key: bytes = KEY, began: float = 1_000.0) -> tuple[SignIn, list[float]]:
        """A page and its clock."""
        now = [began]
        return SignIn("ann@box", key, good_for="x", port=port, now=lambda: now[0]), now

    def test_it_is_signed_in_once(self) -> None:
        """As by the first token, which stays as good as it was."""
        sign_in, now = self.page()
        token = further_token(KEY, port=8427, now=now[0])
        response = sign_in.take_token(request(f"token={token}"))
        assert response is not None
        assert response.headers["location"] == "http://localhost:8427/jobs"
        assert sign_in.user_of(request(cookie=cookie_of(response))) == "ann@box"
        assert sign_in.take_token(request(f"token={token}")) is None
        assert sign_in.take_token(request(f"token={sign_in.token}")) is not None

    def test_each_has_one_of_its_own(self) -> None:
        """However many at one moment."""
        sign_in, now = self.page()
        tokens = {further_token(KEY, port=8427, now=now[0]) for _ in range(5)}
        assert len(tokens) == 5
        assert all(sign_in.take_token(request(f"token={token}")) for token in tokens)

    def test_it_is_for_one_page_and_one_user(self) -> None:
        """Neither another port nor another key."""
        token = further_token(KEY, port=8427, now=1_000.0)
        for sign_in in (self.page(port=8428)[0], self.page(key=b"x" * 32)[0]):
            assert sign_in.take_token(request(f"token={token}")) is None

    def test_it_ends(self) -> None:
        """After some minutes, and with the page that was served when it was made."""
        token = further_token(KEY, port=8427, now=1_000.0)
        sign_in, now = self.page()
        now[0] += LASTS_S + 1
        assert sign_in.take_token(request(f"token={token}")) is None
        begun_later, _ = self.page(began=1_001.0)
        assert begun_later.take_token(request(f"token={token}")) is None

    def test_nothing_else_is_one(self) -> None:
        """No part of it can be changed, nor does a cookie stand for it, nor it for a cookie."""
        sign_in, now = self.page()
        issued, nonce, signature = further_token(KEY, port=8427, now=now[0]).split(".")
        response = sign_in.take_token(request(f"token={sign_in.token}"))
        assert response is not None
        name, _, cookie = cookie_of(response).partition("=")
        for wrong in (
            f"{int(issued) + 1}.{nonce}.{signature}",
            f"{issued}.{nonce}x.{signature}",
            f"{issued}.{nonce}.{signature[:-1]}",
            f"{issued}..{signature}",
            "..",
            cookie,
            "9" * 10_000,
            "%C3%A9.%C3%A9.%C3%A9",
        ):
            assert sign_in.take_token(request(f"token={wrong}")) is None
        assert sign_in.user_of(request(cookie=f"{name}={issued}.{nonce}.{signature}")) is None
        assert sign_in.take_token(request(f"token={issued}.{nonce}.{signature}")) is not None


def test_the_key_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    """It is made once, and read by nobody else."""
    key = kept_key(tmp_path / "data")
    path = tmp_path / "data" / "web-key"
    assert len(key) == 32
    assert kept_key(tmp_path / "data") == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["web-key"]


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """So are one that is too short, and a link that leads elsewhere."""
    path = tmp_path / "web-key"
    kept_key(tmp_path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="may be read by others"):
        kept_key(tmp_path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="no key of ours"):
        kept_key(tmp_path)
    path.unlink()
    os.symlink("/etc/hostname", path)
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        kept_key(tmp_path)
