"""What stands around a page for one user: its menu, its buttons, whether it is live."""

from __future__ import annotations

from starlette.requests import Request

from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.access.users import Users
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.addresses import path_with_words
from queue_workflows.web.page import Address, Shown
from queue_workflows.web.rendering import static_files
from queue_workflows.web.rendering.templates import Frame


class Frames:
    """Makes them, by what the user may do."""

    def __init__(self, users: Users, redaction: Redaction, *, read_only: bool, live: bool) -> None:
        self._users = users
        self._redaction = redaction
        self._read_only = read_only
        self._live = live

    async def allowed(self, user: str) -> frozenset[str]:
        """The verbs that this user may use on something, for the buttons.

        The door asks again for each target.
        """
        if self._read_only:
            return frozenset()
        return await self._users.may_any_of(user, ACTS)

    async def of(self, request: Request, address: Address, shown: Shown) -> Frame:
        """What stands around this page, for the user of the request."""
        allowed = await self.allowed(request.scope["state"]["user"])
        return self.around(request, address, shown, allowed)

    def around(
        self,
        request: Request,
        address: Address | None,
        shown: Shown | None = None,
        allowed: frozenset[str] = frozenset(),
    ) -> Frame:
        """What stands around a page, or around a refusal where there is none."""
        prefix = request.scope.get("root_path", "").rstrip("/")
        path = path_with_words(request)
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
            notice=shown.notice if shown else None,
            come_back_s=None if self._live or shown is None or not shown.is_live else 5,
            static=lambda name: prefix + static_files.address_of(name),
            may=allowed.__contains__,
            shown=self._redaction.shown,
            labels=self._redaction.labels,
        )
