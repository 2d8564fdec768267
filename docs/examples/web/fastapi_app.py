"""The operator's page below /ops of a FastAPI application, for the users that its session knows.

pip install 'queue-workflows[web]' fastapi itsdangerous python-multipart
SECRET_KEY=… QWF_DB_URL=… uvicorn fastapi_app:app
"""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.middleware.sessions import SessionMiddleware

from queue_workflows.web import create_app

# Stands for your table of users: passwords belong there, hashed.
USERS = {"ada": ("operator", "ada's password"), "vic": ("viewer", "vic's password")}
FORM = """<!doctype html><title>Sign in</title><form method="post">
<label>Name <input name="name"></label> <label>Password <input name="password" type="password"></label>
<button>Sign in</button></form>"""

app = FastAPI()
app.add_middleware(SessionMiddleware, secret_key=os.environ["SECRET_KEY"], same_site="strict")


@app.get("/")
def ask_who() -> Response:
    """Where a user says who it is."""
    return HTMLResponse(FORM)


@app.post("/")
def sign_in(request: Request, name: Annotated[str, Form()], password: Annotated[str, Form()]) -> Response:
    """Remember the user in a signed cookie."""
    if name not in USERS or USERS[name][1] != password:
        return HTMLResponse(FORM, status_code=401)
    request.session["user"] = name
    return RedirectResponse("/ops/jobs", status_code=303)


def user_of(request: Request) -> str | None:
    """The signed-in user; the session's middleware has read its cookie before the page is asked."""
    user: str | None = request.session.get("user")
    return user


def authorize(user: str, verb: str, _target: str) -> bool:
    """A viewer looks, an operator does everything; `verb` is `look` or an act such as `job.cancel`."""
    role, _password = USERS.get(user, ("", ""))
    return role == "operator" or (role == "viewer" and verb == "look")


app.mount("/ops", create_app(None, authorize=authorize, user=user_of))
