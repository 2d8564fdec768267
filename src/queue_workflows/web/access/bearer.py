"""The token of a program: sent with each request as `Authorization: Bearer`, and good until the page ends."""

from __future__ import annotations

import hmac
import secrets

from starlette.requests import Request


class BearerToken:
    """A secret of this process that stands for one user."""

    def __init__(self, user: str) -> None:
        self._user = user
        self.token = secrets.token_urlsafe(32)

    def user_of(self, request: Request) -> str | None:
        """The user, if the request has the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        is_ours = hmac.compare_digest(given.strip().encode(), self.token.encode())
        return self._user if is_ours else None
