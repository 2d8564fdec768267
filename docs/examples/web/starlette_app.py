"""The operator's page below /ops of a Starlette application, for the users that its session knows.

pip install 'queue-workflows[web]' itsdangerous python-multipart
SECRET_KEY=… QWF_DB_URL=… uvicorn starlette_app:app
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from queue_workflows.web import create_app

# Stands for your table of users: passwords belong there, hashed.
USERS = {"ada": ("operator", "ada's password"), "vic": ("viewer", "vic's password")}
FORM = """<!doctype html><title>Sign in</title><form method="post">
<label>Name <input name="name"></label> <label>Password <input name="password" type="password"></label>
<button>Sign in</button></form>"""


async def sign_in(request: Request) -> Response:
    """Where a user says who it is."""
    if request.method == "GET":
        return HTMLResponse(FORM)
    said = dict(parse_qsl((await request.body()).decode()))
    _role, password = USERS.get(said.get("name", ""), ("", None))
    if password is None or password != said.get("password"):
        return HTMLResponse(FORM, status_code=401)
    request.session["user"] = said["name"]
    return RedirectResponse("/ops/jobs", status_code=303)


def user_of(request: Request) -> str | None:
    """The signed-in user; the session's middleware has read its cookie before the page is asked."""
    name: str | None = request.session.get("user")
    return name


def authorize(user: str, verb: str, _target: str) -> bool:
    """A viewer looks, an operator does everything; `verb` is `look` or an act such as `job.cancel`."""
    role, _password = USERS.get(user, ("", ""))
    return role == "operator" or (role == "viewer" and verb == "look")


ops = create_app(None, authorize=authorize, user=user_of)
app = Starlette(
    routes=[Route("/", sign_in, methods=["GET", "POST"]), Mount("/ops", ops)],
    middleware=[Middleware(SessionMiddleware, secret_key=os.environ["SECRET_KEY"], same_site="strict")],
)
