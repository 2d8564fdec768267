"""The page as an ASGI application: a request is judged, its page is read, and the answer is made safe.

    request ── known host? ── static file, healthz ── origin (to change) ── user ── authorize ──┐
                                                                                               │
       page: readers look at one moment ── rendered <──────────────────────────────────────────┤
       /live: a slot of the hub, as server-sent events <───────────────────────────────────────┤
       /act: the one door of everything that changes something <───────────────────────────────┘

Every response, whatever it is, leaves with the same headers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from queue_workflows.config import effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.settings import Settings
from queue_workflows.web.access import requests as judging
from queue_workflows.web.access.bearer import BearerToken
from queue_workflows.web.access.redaction import Redact, Redaction
from queue_workflows.web.access.sign_in import SignIn
from queue_workflows.web.access.users import LOOK, SOMETHING, Authorize, FindUser, Users
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.acts.door import Door
from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.live.ears import Ears
from queue_workflows.web.live.hub import Hub
from queue_workflows.web.live.stream import events
from queue_workflows.web.mcp import check_installed
from queue_workflows.web.page import Address, Look, Shown
from queue_workflows.web.pages.all import ADDRESSES
from queue_workflows.web.rendering import answers, refusals, static_files, texts
from queue_workflows.web.rendering.templates import Frame, render_live

if TYPE_CHECKING:
    from queue_workflows.web.mcp.endpoint import McpEndpoint

_log = logging.getLogger(__name__)

LONGEST_ADDRESS: Final = 16_384
MOST_WORDS: Final = 50
MCP: Final = "/mcp"
# What of an address stays as it is: it was encoded where it was made.
_IN_QUERIES: Final = "%!$&'()*+,;=:@/?-._~[]"
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
            await _live_through(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(self._placed(scope), receive)
        response = await self._answer(request)
        await response(request.scope, receive, _with_headers(send))

    def _placed(self, scope: Scope) -> Scope:
        """Where it is mounted, as a server or a router said, or else as the host app did.

        The words behind the address are in ASCII from here on: a browser writes them so, others may not.
        """
        query = quote(scope.get("query_string", b""), safe=_IN_QUERIES).encode()
        # Some servers leave half of a surrogate pair for what is no UTF-8; no text here has one.
        placed = {**scope, "path": scope["path"].encode("utf-8", "replace").decode(), "query_string": query}
        if self._prefix and not scope.get("root_path"):
            # A proxy in between may have taken the prefix off.
            path = placed["path"].removeprefix(self._prefix)
            is_whole = path != placed["path"] and path[:1] in ("", "/")
            placed |= {
                "root_path": self._prefix,
                "path": self._prefix + ((path or "/") if is_whole else placed["path"]),
            }
        return placed

    async def _answer(self, request: Request) -> Response:
        frame = self._frame(request, None)
        wants_json = _wants_json(request)
        try:
            refusal = self._before_users(request)
            if refusal is not None:
                _note(request, refusal)
                return answers.refused(frame, refusal, wants_json=wants_json)
            open_to_all = self._open_to_all(request)
            if open_to_all is not None:
                return open_to_all
            user = await self._user(request)
            if isinstance(user, Response):
                return user
            if user is None:
                _note(request, refusals.SIGNED_OUT)
                return answers.refused(frame, refusals.SIGNED_OUT, wants_json=wants_json)
            request.state.user = user
            return await self._routed(request)
        except Exception as exc:
            return answers.refused(frame, refusals.refusal_of(exc), wants_json=wants_json)

    def _before_users(self, request: Request) -> refusals.Refusal | None:
        if not judging.is_known_host(request, self._hosts):
            return refusals.UNKNOWN_HOST
        flaw = _flaw_of_address(request)
        if flaw is not None or request.method in judging.SAFE_METHODS:
            return flaw
        if self._mcp is not None and _path_below(request) == MCP:
            return None if judging.may_be_program(request) else refusals.ELSEWHERE
        if self._read_only:
            return refusals.READ_ONLY
        return None if judging.is_from_our_page(request) else refusals.ELSEWHERE

    def _open_to_all(self, request: Request) -> Response | None:
        """What has no secret in it: the style sheet and scripts, and whether the program is there."""
        path = _path_below(request)
        if path == "/healthz":
            return PlainTextResponse("ok\n", headers=answers.NOT_KEPT)
        if path.startswith("/static/"):
            hashed, _, name = path.removeprefix("/static/").partition("/")
            current = static_files.address_or_none(name)
            return static_files.answer(name, is_current=current == f"/static/{hashed}/{name}")
        return None

    async def _user(self, request: Request) -> str | Response | None:
        if self._mcp is not None and _path_below(request) == MCP:
            return await self._mcp.user_of(request, self._users) or answers.sent_by_nobody(
                self._frame(request, None)
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
                return answers.refused(self._frame(request, None), refusals.Refusal(405, "Not in this way"))
        return answers.refused(self._frame(request, None), refusals.NOT_HERE, wants_json=_wants_json(request))

    def show(self, address: Address, *, as_json: bool) -> Callable[[Request], Any]:
        """The endpoint of one page."""

        async def endpoint(request: Request) -> Response:
            user: str = request.state.user
            if not await self._users.may(user, LOOK, _page_of(request, as_json=as_json)):
                return answers.refused(
                    self._frame(request, address), refusals.DENIED, wants_json=_wants_json(request)
                )
            shown = await self._look(request, address, as_json=as_json)
            if as_json:
                return answers.as_json(self._redaction.document(shown.json))
            return answers.page(await self._framed(request, address, shown), shown)

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
                return await self._streamed(Request({**scope, **child}), address)
        return answers.refused(self._frame(request, None), refusals.NOT_HERE)

    async def _streamed(self, request: Request, address: Address) -> Response:
        user: str = request.scope["state"]["user"]

        async def may_watch() -> bool:
            return await self._users.may(user, LOOK, _path_below(request))

        if not self._live or not await may_watch():
            return answers.refused(self._frame(request, None), refusals.DENIED)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_STREAM)
        self.hub.admit(user)
        allowed = await self._allowed(user)

        async def render() -> str:
            try:
                shown = await self._look(request, address, as_json=False)
            except Exception as exc:
                return _notice(refusals.refusal_of(exc))
            return render_live(shown.template, await self._framed(request, address, shown), shown.data)

        self._ears.listen(asyncio.get_running_loop())
        key = (request.scope.get("root_path", ""), _path_with_words(request), allowed)
        body = events(self.hub.watching(key, user, render), may_watch=may_watch)
        return StreamingResponse(body, media_type="text/event-stream", headers=_STREAM)

    async def _look(self, request: Request, address: Address, *, as_json: bool) -> Shown:
        parts = {name: str(value) for name, value in request.path_params.items()}
        words = _words(request)
        settings = self.settings

        def look(conn: Any) -> Shown:
            return address.show(
                Look(
                    conn,
                    settings,
                    parts,
                    words,
                    prefix=request.scope.get("root_path", "").rstrip("/"),
                    dsn=self._opened.dsn,
                    schema_refusal=self._opened.schema_refusal,
                    redaction=self._redaction,
                    as_json=as_json,
                )
            )

        if address.is_alone:
            return await self.readers.beside(look)
        return await self.readers.ask(look)

    async def _allowed(self, user: str) -> frozenset[str]:
        """The verbs that this user may use on something, for the buttons.

        The door asks again for each target.
        """
        if self._read_only:
            return frozenset()
        asked = await asyncio.gather(*(self._users.may(user, act.name, SOMETHING) for act in ACTS.values()))
        return frozenset(act.name for act, may in zip(ACTS.values(), asked, strict=True) if may)

    async def _framed(self, request: Request, address: Address, shown: Shown) -> Frame:
        allowed = await self._allowed(request.scope["state"]["user"])
        return self._frame(request, address, shown, allowed)

    def _frame(
        self,
        request: Request,
        address: Address | None,
        shown: Shown | None = None,
        allowed: frozenset[str] = frozenset(),
    ) -> Frame:
        prefix = request.scope.get("root_path", "").rstrip("/")
        path = _path_with_words(request)
        is_live = self._live and shown is not None and shown.is_live
        return Frame(
            title=shown.title if shown else "",
            path=path,
            command=shown.command if shown else "",
            user=request.scope.get("state", {}).get("user"),
            prefix=prefix,
            section=address.section if address else "",
            live_topic=path if is_live else None,
            read_only=self._read_only,
            has_json=address.has_json if address else False,
            come_back_s=None if self._live or shown is None or not shown.is_live else 5,
            static=lambda name: prefix + static_files.address_of(name),
            may=allowed.__contains__,
            shown=self._redaction.shown,
        )

    async def preview(self, request: Request) -> Response:
        """What an act would do, before it is done."""
        return await self._door.preview(request, self._users, self._frame(request, None))

    async def act(self, request: Request) -> Response:
        """Do it."""
        return await self._door.act(request, self._users, self._frame(request, None))

    async def ask(self, request: Request) -> Response:
        """What a program asks by the Model Context Protocol."""
        user: str = request.state.user
        if self._mcp is None:
            return answers.refused(self._frame(request, None), refusals.NOT_HERE, wants_json=True)
        if not await self._users.may(user, LOOK, MCP):
            return answers.refused(self._frame(request, None), refusals.DENIED, wants_json=True)
        return self._mcp.answer(user)

    async def progress(self, request: Request) -> Response:
        """How far an act is, which goes on in pages."""
        return await self._door.progress(request, self._users, self._frame(request, None))

    async def go(self, request: Request) -> Response:
        """To whatever a name is of, if this user may see it: a redirect tells that a thing is there."""
        from queue_workflows.web.pages.go import place_of

        wanted = request.query_params.get("q", "")[:300]
        path = await self.readers.ask(lambda conn: place_of(conn, wanted))
        if not await self._users.may(request.state.user, LOOK, path.partition("?")[0]):
            return answers.refused(self._frame(request, None), refusals.DENIED)
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
        Route("/act", web.act, methods=["POST"]),
        Route("/act/{number}", web.progress),
        Route(MCP, web.ask, methods=["POST"]),
        *routes,
    ]


def _path_below(request: Request) -> str:
    """The path without what the app is mounted under."""
    path: str = request.scope["path"]
    root = request.scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _flaw_of_address(request: Request) -> refusals.Refusal | None:
    path: str = request.scope["path"]
    if len(request.scope["query_string"]) + len(path) > LONGEST_ADDRESS:
        return refusals.Refusal(414, "This address is too long")
    return refusals.NO_NUL if "\0" in path else None


def _page_of(request: Request, *, as_json: bool) -> str:
    """What `authorize` is asked about: a page, and its JSON by the same name."""
    path = _path_below(request)
    if not as_json:
        return path
    return "/" if path == "/overview.json" else path.removesuffix(".json")


def _query(request: Request) -> str:
    """The words behind the address as they came."""
    query: bytes = request.scope.get("query_string", b"")
    return query.decode("ascii")


def _words(request: Request) -> dict[str, str]:
    try:
        found = dict(parse_qsl(_query(request), keep_blank_values=True, max_num_fields=MOST_WORDS))
    except ValueError:
        raise judging.RequestRefused(400, f"An address has at most {MOST_WORDS} words behind it") from None
    if any("\0" in part for pair in found.items() for part in pair):
        raise judging.RequestRefused(400, texts.NO_NUL)
    return found


def _path_with_words(request: Request) -> str:
    """As it stands in a link."""
    query = _query(request)
    return quote(_path_below(request), safe="/:@") + (f"?{query}" if query else "")


def _wants_json(request: Request) -> bool:
    path: str = request.scope["path"]
    return path.endswith((".json", MCP))


def _note(request: Request, why: refusals.Refusal) -> None:
    """The one trace of a request that would have changed something and was refused."""
    if request.method not in judging.SAFE_METHODS:
        path, host = _path_below(request)[:200], judging.host_of(request)[:200]
        _log.warning("refused: %s %r to %r: %s", request.method[:20], path, host, why.title)


def _notice(why: refusals.Refusal) -> str:
    from queue_workflows.web.rendering.templates import environment

    return environment().get_template("_refusal.html").render(why=why)


def _with_headers(send: Send) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in judging.HEADERS.items():
                headers[name] = value
        await send(message)

    return sends


async def _live_through(receive: Receive, send: Send) -> None:
    """A server that asks for a start and an end gets both; nothing here waits for them."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
