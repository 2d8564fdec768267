"""Answers a tool call: its arguments fit, its user may see the page, and the page's own look answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import jsonschema
import psycopg

from queue_workflows.settings import Settings
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.access.users import LOOK, SOMETHING, Users
from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.mcp.act_calls import ActCalls, ActTool
from queue_workflows.web.mcp.answer_size import sized
from queue_workflows.web.mcp.tools import TOOLS, Asked, Tool
from queue_workflows.web.page import Look, Shown
from queue_workflows.web.rendering import texts
from queue_workflows.web.rendering.refusals import Refusal, refusal_of

_BY_NAME: Final = {tool.name: tool for tool in TOOLS}
_SHOWN_FLAWS: Final = 5


@dataclass(frozen=True)
class Answer:
    """What a call is answered: a JSON object, or why not."""

    value: dict[str, Any] | None
    refused: Refusal | None = None

    @property
    def words(self) -> str:
        """A refusal on one line."""
        why = self.refused
        return "" if why is None else " — ".join(part for part in (why.title, why.text, why.advice) if part)


class ToolCalls:
    """The tools of one database; `allowed` are the acts that programs may do, none unless named."""

    def __init__(
        self,
        opened: OpenedDatabase,
        readers: Readers,
        writers: Writers,
        users: Users,
        *,
        redaction: Redaction,
        settings: Callable[[], Settings],
        allowed: Collection[str] = (),
    ) -> None:
        self._opened = opened
        self._readers = readers
        self._users = users
        self._redaction = redaction
        self._settings = settings
        self._acts = ActCalls(allowed, readers, writers, users, redaction=redaction, settings=settings)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="qwf-web-doctor")

    def close(self) -> None:
        """Let go of the thread beside the readers."""
        self._beside.shutdown(wait=False, cancel_futures=True)

    async def tools(self, user: str) -> list[Tool | ActTool]:
        """The tools that this user can call: every question, and the acts that it may do to something."""
        acts = list(self._acts.tools.values())
        may = await asyncio.gather(*(self._users.may(user, tool.act.name, SOMETHING) for tool in acts))
        return [*TOOLS, *(tool for tool, is_allowed in zip(acts, may, strict=True) if is_allowed)]

    def known(self, name: str) -> Tool | ActTool | None:
        """The tool of that name."""
        return _BY_NAME.get(name) or self._acts.tools.get(name)

    async def call(self, user: str, tool: Tool | ActTool, given: Mapping[str, Any]) -> Answer:
        """Its answer, whatever happens; only a cancelled call has none."""
        try:
            _check(tool, given)
            told = await self._told(user, tool, given)
            answer = sized(told)
        except Exception as exc:
            return Answer(None, refusal_of(exc))
        return Answer(answer.value | ({"cut": list(answer.cut)} if answer.cut else {}))

    async def _told(self, user: str, tool: Tool | ActTool, given: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(tool, ActTool):
            return {"answer": await self._acts.call(user, tool, given)}
        asked = tool.page(given)
        if not await self._users.may(user, LOOK, asked.path):
            raise RequestRefused(403, texts.DENIED)
        shown = await self._shown(tool, asked)
        told = {"command": shown.command, "answer": self._redaction.document(shown.json)}
        return told | ({"before": shown.cursor} if shown.cursor is not None else {})

    async def _shown(self, tool: Tool, asked: Asked) -> Shown:
        settings = self._settings()
        # On a connection of its own, so before a reader has one: behind a small pool it would wait for that.
        refusal = await asyncio.to_thread(self._opened.schema_refusal) if tool.needs_database else None

        def look(conn: psycopg.Connection[Any] | None) -> Shown:
            return asked.show(
                Look(
                    conn,  # type: ignore[arg-type] # None only for what asks for none
                    settings,
                    asked.parts,
                    asked.words,
                    doctor=self._opened.last_report.report,
                    schema_refusal=refusal,
                    redaction=self._redaction,
                    as_json=True,
                )
            )

        if tool.needs_database:
            return await self._readers.ask(look)
        return await asyncio.get_running_loop().run_in_executor(self._beside, look, None)


def _check(tool: Tool | ActTool, given: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit, with what is wrong with each."""
    if not _is_storable(given):
        raise RequestRefused(400, "These arguments have characters that no text in the database has")
    flaws = list(jsonschema.Draft202012Validator(tool.schema).iter_errors(dict(given)))
    if flaws:
        shown = "; ".join(_flaw(one) for one in flaws[:_SHOWN_FLAWS])
        takes = ", ".join(tool.schema["properties"]) or "nothing"
        raise RequestRefused(400, f"These arguments do not fit: {shown}", advice=f"{tool.name} takes {takes}")


def _is_storable(value: Any) -> bool:
    """Whether every text in it could be in a column: no NUL, no half of a surrogate pair."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, Mapping):
        return all(_is_storable(name) and _is_storable(inner) for name, inner in value.items())
    return all(_is_storable(inner) for inner in value) if isinstance(value, list) else True


def _flaw(one: jsonschema.ValidationError) -> str:
    place = ".".join(map(str, one.absolute_path))
    return f"{place}: {one.message:.200}" if place else f"{one.message:.200}"
