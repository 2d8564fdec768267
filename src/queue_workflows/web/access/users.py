"""Which user asks, and whether it may: both are the host app's to say, and what it cannot say is a no."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

_log = logging.getLogger(__name__)

LOOK: Final = "look"
# The target that asks whether a user may do something at all, for the buttons. It is the name of no thing,
# so that a yes to it is a yes to nothing: `*` is every queue, and every key of a limit.
SOMETHING: Final = ""

# The user of a request, None for nobody; and whether the user may do `verb` to `target`.
FindUser = Callable[[Request], str | None] | Callable[[Request], Awaitable[str | None]]
Authorize = Callable[[str, str, str], bool] | Callable[[str, str, str], Awaitable[bool]]

_LONGEST_NAME: Final = 200


class Users:
    """Asks the host app's two functions; one that raises has said no, and the log says why."""

    def __init__(self, find: FindUser, authorize: Authorize) -> None:
        self._find = find
        self._authorize = authorize

    async def user_of(self, request: Request) -> str | None:
        """The signed-in user's name, as it stands in the audit log."""
        try:
            found = await _call(self._find, request)
        except Exception:
            _log.exception("the function that names a request's user raised; the request is refused")
            return None
        return found[:_LONGEST_NAME] if isinstance(found, str) and found.strip() else None

    async def may_any_of(self, user: str, verbs: Collection[str]) -> frozenset[str]:
        """What of this the user may do to something, asked on one thread one after the other."""
        if inspect.iscoroutinefunction(self._authorize):
            asked = await asyncio.gather(*(self.may(user, verb, SOMETHING) for verb in verbs))
            return frozenset(verb for verb, may in zip(verbs, asked, strict=True) if may)
        answers = await run_in_threadpool(self._asked, user, verbs)
        return frozenset([verb for verb, answer in answers.items() if await _is_yes(verb, answer)])

    def _asked(self, user: str, verbs: Collection[str]) -> dict[str, object]:
        answers: dict[str, object] = {}
        for verb in verbs:
            try:
                answers[verb] = self._authorize(user, verb, SOMETHING)
            except Exception:
                _log.exception("authorize raised for %s; it is denied", verb)
        return answers

    async def may(self, user: str, verb: str, target: str) -> bool:
        """Whether this user may do this to that; only a plain True is a yes."""
        try:
            return await _call(self._authorize, user, verb, target) is True
        except Exception:
            _log.exception("authorize raised for %s; it is denied", verb)
            return False


async def _is_yes(verb: str, answer: object) -> bool:
    """Whether it is one, also where a plain function gave what is to be awaited."""
    try:
        return (await answer if inspect.isawaitable(answer) else answer) is True
    except Exception:
        _log.exception("authorize raised for %s; it is denied", verb)
        return False


async def _call(function: Callable[..., object], *given: object) -> object:
    """A coroutine is awaited; a plain function may ask a database, so it does not hold up the loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    answer = await run_in_threadpool(function, *given)
    return await answer if inspect.isawaitable(answer) else answer
