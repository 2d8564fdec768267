"""The page as an ASGI application: a request is judged, its page is read, and the answer is made safe.

    request ── known host? ── static file, healthz ── origin (to change) ── user ── authorize ──┐
                                                                                               │
       page: readers look at one moment ── rendered <──────────────────────────────────────────┤
       /live: a slot of the hub, as server-sent events <───────────────────────────────────────┤
       /act: the one door of everything that changes something <───────────────────────────────┘

Every response, whatever it is, leaves with the same headers. `addresses` reads what is asked for, `admission`
judges a request before its user is known, `frames` makes what stands around a page, `protocol` has headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send

from queue_workflows.config import effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.settings import Settings
from queue_workflows.web.access.bearer import BearerToken
from queue_workflows.web.access.redaction import Redact, Redaction
from queue_workflows.web.access.sign_in import SignIn
from queue_workflows.web.access.users import LOOK, Authorize, FindUser, Users
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.acts.door import Door
from queue_workflows.web.addresses import (
    MCP,
    page_named,
    path_below,
    path_with_words,
    placed,
    wants_json,
    words_of,
)
from queue_workflows.web.admission import note_refusal, open_to_all, refusal_before_users
from queue_workflows.web.database.opened import OpenedDatabase, refusal_by
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.frames import Frames
from queue_workflows.web.live.ears import Ears
from queue_workflows.web.live.hub import Hub
from queue_workflows.web.live.stream import events
from queue_workflows.web.mcp import check_installed
from queue_workflows.web.page import Address, Look, Shown
from queue_workflows.web.pages.all import ADDRESSES
from queue_workflows.web.protocol import live_through, with_headers
from queue_workflows.web.rendering import answers, refusals
from queue_workflows.web.rendering.templates import render_live

if TYPE_CHECKING:
    from queue_workflows.web.mcp.endpoint import McpEndpoint

_STREAM: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def create_app(
    database: str | Database | None,
    *,
    authorize: Authorize,
    user: FindUser,
    redact: Redact | None = None,
    read_only: bool = False,
    prefix: str = "",
    hosts: Collection[str] | None = None,
    live: bool = True,
    mcp: bool = False,
    mcp_acts: Collection[str] = (),
) -> Web:
    """The operator's page, to be mounted in an application.

    `database` is a DSN, a `Database`, or None for the configured one. `user(request)` names the signed-in
    user, None for nobody; `authorize(user, verb, target)` says whether that user may do this; both may be
    coroutines. An empty target asks whether the user may do it to anything, for the buttons. `redact(kind,
    value)` changes what is shown of payloads, results and errors. `prefix` is where the app is mounted, if
    the server does not say so. `hosts` are the names that it answers to, None for any. Without `live` a
    page is loaded again where it would be streamed, as a WSGI server must. With `mcp` also programs ask, at
    `/mcp`, by the Model Context Protocol, as the user that `user` names for their requests; they can do
    none but the `mcp_acts`, such as "job.retry".
    """
    return Web(
        database,
        users=Users(user, authorize),
        redact=redact,
        read_only=read_only,
        prefix=prefix,
        hosts=hosts,
        live=live,
        mcp_acts=mcp_acts if mcp else None,
    )


class Web:
    """The application; `close` lets go of its threads and connections."""

    def __init__(
        self,
        database: str | Database | None,
        *,
        users: Users,
        redact: Redact | None = None,
        read_only: bool = False,
        prefix: str = "",
        hosts: Collection[str] | None = None,
        live: bool = True,
        sign_in: SignIn | None = None,
        settings: Settings | None = None,
        mcp_acts: Collection[str] | None = None,
        mcp_token: BearerToken | None = None,
    ) -> None:
        self._opened = OpenedDatabase(database)
        self._users = users
        self._redaction = Redaction(redact)
        self._read_only = read_only
        self._prefix = prefix.rstrip("/")
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts)
        self._live = live
        self._sign_in = sign_in
        self._settings = settings
        self._frames = Frames(users, self._redaction, read_only=read_only, live=live)
        self.readers = Readers(self._opened)
        self.writers = Writers(self._opened)
        self.hub = Hub()
        self._ears = Ears(self._opened, self.hub)
        self._door = Door(
            self.readers, self.writers, ACTS, redaction=self._redaction, settings=lambda: self.settings
        )
        self._mcp = None if mcp_acts is None else self._mcp_endpoint(mcp_acts, mcp_token)
        self._router = Router([*_routes(self)])

    def close(self) -> None:
        """Let go of everything."""
        if self._mcp is not None:
            self._mcp.close()
        self._ears.close()
        self.readers.close()
        self.writers.close()
        self._opened.__exit__(None, None, None)

    @property
    def settings(self) -> Settings:
        """The settings in force when they are first needed."""
        if self._settings is None:
            self._settings = effective_settings()
        return self._settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what the server received."""
        if scope["type"] == "lifespan":
            await live_through(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(placed(scope, self._prefix), receive)
        response = await self._answer(request)
        await response(request.scope, receive, with_headers(send))

    async def _answer(self, request: Request) -> Response:
        frame = self._frames.around(request, None)
        for_program = wants_json(request)
        try:
            refusal = refusal_before_users(
                request, self._hosts, read_only=self._read_only, has_mcp=self._mcp is not None
            )
            if refusal is not None:
                note_refusal(request, refusal)
                return answers.refused(frame, refusal, wants_json=for_program)
            for_anybody = open_to_all(request)
            if for_anybody is not None:
                return for_anybody
            user = await self._user(request)
            if isinstance(user, Response):
                return user
            if user is None:
                note_refusal(request, refusals.SIGNED_OUT)
                return answers.refused(frame, refusals.SIGNED_OUT, wants_json=for_program)
            request.state.user = user
            return await self._routed(request)
        except Exception as exc:
            return answers.refused(frame, refusals.refusal_of(exc), wants_json=for_program)

    async def _user(self, request: Request) -> str | Response | None:
        if self._mcp is not None and path_below(request) == MCP:
            return await self._mcp.user_of(request, self._users) or answers.sent_by_nobody(
                self._frames.around(request, None)
            )
        if self._sign_in is None:
            return await self._users.user_of(request)
        signed_in = self._sign_in.user_of(request)
        return signed_in or self._sign_in.take_token(request)

    def _mcp_endpoint(self, acts: Collection[str], token: BearerToken | None) -> McpEndpoint:
        check_installed()
        from queue_workflows.web.mcp.endpoint import McpEndpoint
        from queue_workflows.web.mcp.tool_calls import ToolCalls

        calls = ToolCalls(
            self._opened,
            self.readers,
            self.writers,
            self._users,
            redaction=self._redaction,
            settings=lambda: self.settings,
            allowed=() if self._read_only else acts,
        )
        return McpEndpoint(calls, bearer=token)

    async def _routed(self, request: Request) -> Response:
        for route in self._router.routes:
            match, child = route.matches(request.scope)
            if match is Match.FULL and isinstance(route, Route):
                request.scope.update(child)
                answer: Response = await child["endpoint"](request)
                return answer
            if match is Match.PARTIAL:
                return answers.refused(
                    self._frames.around(request, None), refusals.Refusal(405, "Not in this way")
                )
        return answers.refused(
            self._frames.around(request, None), refusals.NOT_HERE, wants_json=wants_json(request)
        )

    def show(self, address: Address, *, as_json: bool) -> Callable[[Request], Any]:
        """The endpoint of one page."""

        async def endpoint(request: Request) -> Response:
            user: str = request.state.user
            if not await self._users.may(user, LOOK, page_named(request, as_json=as_json)):
                return answers.refused(
                    self._frames.around(request, address), refusals.DENIED, wants_json=wants_json(request)
                )
            shown = await self._look(request, address, as_json=as_json)
            if as_json:
                return answers.as_json(self._redaction.document(shown.json))
            return answers.page(await self._frames.of(request, address, shown), shown)

        return endpoint

    async def stream(self, request: Request) -> Response:
        """The changes of the page that `page` names, as it is for this user."""
        path, _, query = request.query_params.get("page", "").partition("?")
        scope = dict(request.scope)
        root = request.scope.get("root_path", "").rstrip("/")
        scope |= {
            "path": root + unquote(path),
            "raw_path": None,
            "query_string": query.encode(),
            "path_params": {},
        }
        for address in ADDRESSES:
            route = Route(address.path, self.show(address, as_json=False))
            match, child = route.matches(scope)
            if match is Match.FULL and not address.is_alone:
                return await self._streamed(request, Request({**scope, **child}), address)
        return answers.refused(self._frames.around(request, None), refusals.NOT_HERE)

    async def _streamed(self, asked: Request, request: Request, address: Address) -> Response:
        user: str = request.scope["state"]["user"]

        async def refused() -> str | None:
            """Whether the request is of the same user still, which may still see it."""
            if await self._user(asked) != user:
                return _notice(refusals.SIGNED_OUT)
            may_look = await self._users.may(user, LOOK, path_below(request))
            return None if may_look else _notice(refusals.DENIED)

        if not self._live or not await self._users.may(user, LOOK, path_below(request)):
            return answers.refused(self._frames.around(request, None), refusals.DENIED)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_STREAM)
        self.hub.admit(user)
        allowed = await self._frames.allowed(user)

        async def render() -> str:
            try:
                shown = await self._look(request, address, as_json=False)
            except Exception as exc:
                return _notice(refusals.refusal_of(exc))
            return render_live(shown.template, await self._frames.of(request, address, shown), shown.data)

        self._ears.listen(asyncio.get_running_loop())
        key = (request.scope.get("root_path", ""), path_with_words(request), allowed)
        body = events(self.hub.watching(key, user, render), refused=refused)
        return StreamingResponse(body, media_type="text/event-stream", headers=_STREAM)

    async def _look(self, request: Request, address: Address, *, as_json: bool) -> Shown:
        parts = {name: str(value) for name, value in request.path_params.items()}
        words = words_of(request)
        settings = self.settings
        # On a connection of its own, so before a reader has one: behind a small pool it would wait for that.
        flaw = None if address.is_alone else await asyncio.to_thread(self._opened.schema_flaw)

        def look(conn: Any) -> Shown:
            shown = address.show(
                Look(
                    conn,
                    settings,
                    parts,
                    words,
                    prefix=request.scope.get("root_path", "").rstrip("/"),
                    doctor=self._opened.last_report.report,
                    schema_refusal=refusal_by(flaw),
                    redaction=self._redaction,
                    as_json=as_json,
                )
            )
            return shown if flaw is None else replace(shown, notice=str(flaw))

        if address.is_alone:
            return await self.readers.beside(look)
        return await self.readers.ask(look)

    async def preview(self, request: Request) -> Response:
        """What an act would do, before it is done."""
        return await self._door.preview(request, self._users, self._frames.around(request, None))

    async def preview_as_json(self, request: Request) -> Response:
        """What an act would do, for programs."""
        return await self._door.preview_as_json(request, self._users, self._frames.around(request, None))

    async def act(self, request: Request) -> Response:
        """Do it."""
        return await self._door.act(request, self._users, self._frames.around(request, None))

    async def ask(self, request: Request) -> Response:
        """What a program asks by the Model Context Protocol."""
        user: str = request.state.user
        if self._mcp is None:
            return answers.refused(self._frames.around(request, None), refusals.NOT_HERE, wants_json=True)
        if not await self._users.may(user, LOOK, MCP):
            return answers.refused(self._frames.around(request, None), refusals.DENIED, wants_json=True)
        return self._mcp.answer(user)

    async def progress(self, request: Request) -> Response:
        """How far an act is, which goes on in pages."""
        return await self._door.progress(request, self._users, self._frames.around(request, None))

    async def go(self, request: Request) -> Response:
        """To whatever a name is of, if this user may see it: a redirect tells that a thing is there."""
        from queue_workflows.web.pages.go import place_of

        wanted = request.query_params.get("q", "")[:300]
        path = await self.readers.ask(lambda conn: place_of(conn, wanted))
        if not await self._users.may(request.state.user, LOOK, path.partition("?")[0]):
            return answers.refused(self._frames.around(request, None), refusals.DENIED)
        return RedirectResponse(request.scope.get("root_path", "").rstrip("/") + path, 303)


def _routes(web: Web) -> list[Route]:
    routes = []
    for address in ADDRESSES:
        if address.has_json:
            named = "/overview.json" if address.path == "/" else f"{address.path}.json"
            routes.append(Route(named, web.show(address, as_json=True)))
        routes.append(Route(address.path, web.show(address, as_json=False)))
    return [
        Route("/live", web.stream),
        Route("/go", web.go),
        Route("/act/preview", web.preview, methods=["GET", "POST"]),
        Route("/act/preview.json", web.preview_as_json, methods=["GET"]),
        Route("/act", web.act, methods=["POST"]),
        Route("/act/{number}", web.progress),
        Route(MCP, web.ask, methods=["POST"]),
        *routes,
    ]


def _notice(why: refusals.Refusal) -> str:
    from queue_workflows.web.rendering.templates import environment

    return environment().get_template("_refusal.html").render(why=why)
