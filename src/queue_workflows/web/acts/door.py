"""The one door of everything that changes something.

    /act/preview ── authorize for each thing ── read-only look ──> page with a mark of what it showed
    POST /act ── mark: of this user, of just this, not used yet ── authorize again ── a writer's thread
                   │ done within a second ──> what became of it
                   └ else 303 ──> GET /act/{number}, which comes back by itself until it is over

A mark that is of something else, or too old, has the preview shown again with what it would be now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from queue_workflows.config import effective_settings
from queue_workflows.settings import Settings
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.access.users import Users
from queue_workflows.web.acts.act import Act, Asked, By, Preview
from queue_workflows.web.acts.form import Form, read_form
from queue_workflows.web.acts.tokens import Judged, Tokens, Verdict
from queue_workflows.web.acts.told import preview_json, redacted_lines, redacted_preview
from queue_workflows.web.acts.under_way import ActsUnderWay, UnderWay, watch
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.rendering import texts
from queue_workflows.web.rendering.answers import NOT_KEPT, as_json
from queue_workflows.web.rendering.templates import Frame, render

_log = logging.getLogger(__name__)

WAITED_FOR_S: Final = 1.0
COME_BACK_S: Final = 2
MOST_BEGUN: Final = 1_000
_SAY_WHY: Final = "Say why: it is about more than one thing."
_CHANGED: Final = {
    Verdict.OTHER: "This is not what was shown to you. Nothing was done; this is what it would be.",
    Verdict.LATE: "You looked at this a while ago. Nothing was done; this is what it would be now.",
}


@dataclass(frozen=True)
class _Wanted:
    """What a user that may do it asks for, and the frame of the page that answers."""

    frame: Frame
    user: str
    act: Act
    form: Form

    @property
    def asked(self) -> Asked:
        """The things and words."""
        return self.form.asked

    @property
    def shown(self) -> Asked:
        """Of what a mark is: without the words that change nothing of what a preview shows."""
        words = {name: value for name, value in self.asked.words.items() if name not in self.act.free_words}
        return replace(self.asked, words=words)


class Door:
    """Shows what an act would be, does it once, and says what became of it."""

    def __init__(
        self,
        readers: Readers,
        writers: Writers,
        acts: Mapping[str, Act],
        *,
        redaction: Redaction,
        settings: Callable[[], Settings] = effective_settings,
        waited_for_s: float = WAITED_FOR_S,
    ) -> None:
        self._readers = readers
        self._writers = writers
        self._acts = acts
        self._redaction = redaction
        self._settings = settings
        self._waited_for_s = waited_for_s
        self._tokens = Tokens()
        self._under_way = ActsUnderWay()
        # Which act a used mark began, for what is sent again.
        self._began: dict[str, str] = {}

    async def preview(self, request: Request, users: Users, frame: Frame) -> Response:
        """What an act would be; nothing is written, and nothing can be."""
        wanted = await self._wanted(request, users, frame)
        return self._page(wanted, await self._look(wanted))

    async def preview_as_json(self, request: Request, users: Users, frame: Frame) -> Response:
        """What an act would be, for programs: they get no mark, as only a page's button acts."""
        wanted = await self._wanted(request, users, frame)
        return as_json(preview_json(redacted_preview(await self._look(wanted), self._redaction)))

    async def act(self, request: Request, users: Users, frame: Frame) -> Response:
        """Do what a preview showed."""
        wanted = await self._wanted(request, users, frame)
        if not wanted.form.seen:
            raise _refused(wanted, 403, "This was not looked at before")
        judged = self._tokens.judge(wanted.form.seen, wanted.user, wanted.shown)
        if judged.verdict is Verdict.USED:
            raise self._done_already(wanted, judged)
        preview = await self._look(wanted)
        if judged.verdict is not Verdict.GOOD or not preview.is_ready:
            return self._page(wanted, preview, 409, _CHANGED.get(judged.verdict, ""))
        if wanted.asked.is_bulk and not wanted.form.reason:
            return self._page(wanted, preview, 422, _SAY_WHY)
        self._under_way.check_room()
        if not self._tokens.use(judged):
            raise self._done_already(wanted, judged)
        return await self._done(wanted.frame, *self._begin(wanted, preview, judged))

    async def progress(self, request: Request, _users: Users, frame: Frame) -> Response:
        """How far an act is, for the user that began it."""
        begun = self._under_way.of(request.path_params["number"], request.state.user)
        if begun is None:
            raise RequestRefused(404, texts.NOT_HERE, advice="The audit log has everything that was done.")
        return self._result(frame, begun)

    async def _wanted(self, request: Request, users: Users, frame: Frame) -> _Wanted:
        """What is asked, by a user that may do it to each of its things."""
        if frame.read_only:
            raise RequestRefused(403, texts.READ_ONLY)
        act, form = await read_form(request, self._acts)
        wanted = _Wanted(frame, request.state.user, act, form)
        targets = wanted.asked.authorized_targets
        may = await asyncio.gather(*(users.may(wanted.user, act.name, target) for target in targets))
        for target, is_allowed in zip(targets, may, strict=True):
            if not is_allowed:
                raise _refused(wanted, 403, texts.ACT_DENIED, f"{act.name} {target}")
        return wanted

    def _done_already(self, wanted: _Wanted, judged: Judged) -> RequestRefused:
        number = self._began.get(judged.nonce)
        advice = f"what became of it is at /act/{number}" if number else None
        return _refused(wanted, 409, "This was done already", advice)

    async def _look(self, wanted: _Wanted) -> Preview:
        settings = self._settings()
        return await self._readers.ask(lambda conn: wanted.act.preview(conn, wanted.asked, settings))

    def _page(self, wanted: _Wanted, preview: Preview, status: int = 200, changed: str = "") -> Response:
        # What was asked by a form stands in no address.
        has_json = wanted.frame.path.startswith("/act/preview?")
        frame = replace(wanted.frame, title=preview.headline, command=preview.command, has_json=has_json)
        is_ready = preview.is_ready
        data = {
            "act": wanted.act,
            "asked": wanted.asked,
            "drawn": {field.name for field in preview.fields},
            "preview": redacted_preview(preview, self._redaction),
            "reason": wanted.form.reason,
            "seen": self._tokens.issue(wanted.user, wanted.shown, preview.count) if is_ready else "",
            "changed": changed,
        }
        return HTMLResponse(render("act_preview.html", frame, data), status, NOT_KEPT)

    def _begin(
        self, wanted: _Wanted, preview: Preview, judged: Judged
    ) -> tuple[UnderWay, asyncio.Future[Any]]:
        act, asked = wanted.act, wanted.asked
        begun = self._under_way.begin(
            wanted.user, act.name, preview.headline, back=preview.back, foreseen=judged.count
        )
        while len(self._began) >= MOST_BEGUN:
            del self._began[next(iter(self._began))]
        self._began[judged.nonce] = begun.number
        by, settings = By(wanted.user, wanted.form.reason or None), self._settings()

        def perform(conn: psycopg.Connection[Any]) -> None:
            begun.go(lambda: act.perform(conn, asked, by, settings), self._writers.is_ending)

        future = self._writers.begin(perform)
        watch(begun, future)
        return begun, asyncio.wrap_future(future)

    async def _done(self, frame: Frame, begun: UnderWay, future: asyncio.Future[Any]) -> Response:
        await asyncio.wait([future], timeout=self._waited_for_s)
        if begun.is_over:
            return self._result(frame, begun)
        return RedirectResponse(f"{frame.prefix}/act/{begun.number}", 303, NOT_KEPT)

    def _result(self, frame: Frame, begun: UnderWay) -> Response:
        """The page of an act: what became of it, or how far it is; one that did nothing is its refusal's."""
        stopped = begun.stopped
        stands = replace(
            frame,
            title=begun.headline,
            has_json=False,
            come_back_s=None if begun.is_over else COME_BACK_S,
        )
        why = None if stopped is None else self._redaction.shown("error", stopped.title)
        status = stopped.status if stopped is not None and not begun.total else 200
        lines = redacted_lines(begun.lines, self._redaction)
        page = render("act_result.html", stands, {"begun": begun, "lines": lines, "why": why})
        return HTMLResponse(page, status, NOT_KEPT)


def _refused(wanted: _Wanted, status: int, title: str, advice: str | None = None) -> RequestRefused:
    """A refusal, of which a line in the log is the one trace."""
    _log.warning("refused %s to %r: %s", wanted.act.name, wanted.user, title)
    return RequestRefused(status, title, advice=advice)
