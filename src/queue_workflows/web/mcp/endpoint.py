"""`/mcp` of the page: the protocol over HTTP, a request and its answer, with nothing kept in between."""

from __future__ import annotations

from typing import Any, Final

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queue_workflows.web.access.bearer import BearerToken
from queue_workflows.web.access.users import Users
from queue_workflows.web.mcp.server import server_of
from queue_workflows.web.mcp.tool_calls import ToolCalls

MOST_BYTES: Final = 1_048_576


class McpEndpoint:
    """Answers the requests of programs, each on its user's account.

    With `bearer` a program shows that token; without it the host app names a request's user.
    """

    def __init__(self, calls: ToolCalls, *, bearer: BearerToken | None = None) -> None:
        self._calls = calls
        self._bearer = bearer

    async def user_of(self, request: Request, users: Users) -> str | None:
        """The user, None for nobody."""
        if self._bearer is not None:
            return self._bearer.user_of(request)
        return await users.user_of(request)

    def answer(self, user: str) -> Response:
        """The answer to a request of this user, which reads the request itself."""
        return _McpResponse(server_of(self._calls, user))

    def close(self) -> None:
        """Let go of what it has beside the page."""
        self._calls.close()


class _McpResponse(Response):
    """What the protocol's own server says to one request.

    A mounted app is told nothing of its start, so the server lives as long as the request.
    """

    def __init__(self, server: Server[Any]) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sessions = StreamableHTTPSessionManager(
            self._server, json_response=True, stateless=True, max_request_body_size=MOST_BYTES
        )
        async with sessions.run():
            await sessions.asgi_app(scope, receive, send)
