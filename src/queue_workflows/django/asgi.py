"""The operator's page below an address of the project, for the staff that Django knows.

A member of staff looks, a superuser acts. It is served by an ASGI server: `manage.py runserver` is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user, get_user_model
from django.http import HttpRequest
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queue_workflows.django.apps import living_connections
from queue_workflows.web import create_app

LOOK = "look"


def with_operators_page(application: ASGIApp, prefix: str = "/ops", **options: Any) -> ASGIApp:
    """The project's application, and the page below `prefix`; `options` are those of `create_app`."""
    below = f"/{prefix.strip('/')}"
    asked = {"user": user_of, "authorize": authorize, "prefix": below, **options}
    page = create_app(None, **asked)

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"].startswith(f"{below}/")
        await (page if is_ours else application)(scope, receive, send)

    return both


def user_of(request: Request) -> str | None:
    """The signed-in member of staff, by the session of Django; it may read its table, so not on the loop."""
    asked = HttpRequest()
    store = import_module(settings.SESSION_ENGINE).SessionStore
    asked.session = store(request.cookies.get(settings.SESSION_COOKIE_NAME))
    with living_connections():
        user = get_user(asked)
    return str(user.get_username()) if user.is_active and user.is_staff else None


def authorize(user: str, verb: str, _target: str) -> bool:
    """Staff looks, a superuser does everything."""
    if verb == LOOK:
        return True
    model = get_user_model()
    with living_connections():
        found = model._default_manager.filter(**{model.USERNAME_FIELD: user}).first()
    return found is not None and bool(found.is_active and found.is_superuser)
