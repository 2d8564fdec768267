"""The operator's page below /ops of a Flask application, for the users that its session knows.

    pip install 'queue-workflows[web]' a2wsgi flask
    SECRET_KEY=… QWF_DB_URL=… flask --app flask_app run

A WSGI server has a thread for each request, which a stream would keep: the page is loaded again instead.
"""

from __future__ import annotations

import os

from a2wsgi import ASGIMiddleware
from flask import Flask, redirect, request, session
from starlette.requests import Request
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Response

from queue_workflows.web import create_app

# Stands for your table of users: passwords belong there, hashed.
USERS = {"ada": ("operator", "ada's password"), "vic": ("viewer", "vic's password")}
FORM = """<!doctype html><title>Sign in</title><form method="post">
<label>Name <input name="name"></label> <label>Password <input name="password" type="password"></label>
<button>Sign in</button></form>"""

app = Flask(__name__)
app.config.update(SECRET_KEY=os.environ["SECRET_KEY"], SESSION_COOKIE_SAMESITE="Strict")


@app.get("/")
def ask_who() -> str:
    """Where a user says who it is."""
    return FORM


@app.post("/")
def sign_in() -> Response | tuple[str, int]:
    """Remember the user in a signed cookie."""
    name = request.form.get("name", "")
    if name not in USERS or USERS[name][1] != request.form.get("password"):
        return FORM, 401
    session["user"] = name
    return redirect("/ops/jobs", 303)


def user_of(asked: Request) -> str | None:
    """The signed-in user: Flask reads its session from whatever request has its cookie."""
    kept = app.session_interface.open_session(app, asked)
    return None if kept is None else kept.get("user")


def authorize(user: str, verb: str, _target: str) -> bool:
    """A viewer looks, an operator does everything; `verb` is `look` or an act such as `job.cancel`."""
    role, _password = USERS.get(user, ("", ""))
    return role == "operator" or (role == "viewer" and verb == "look")


ops = create_app(None, authorize=authorize, user=user_of, live=False)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/ops": ASGIMiddleware(ops)})
