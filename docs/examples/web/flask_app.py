"""The operator's page below /ops of a Flask application, for the users that its session knows.

    pip install 'queue-workflows[web]' a2wsgi flask
    SECRET_KEY=… QWF_DB_URL=… flask --app flask_app run

A WSGI server has a thread for each request, which a stream would keep: the page is loaded again instead. The
first request for it makes it, so importing this module starts no thread.
"""

from __future__ import annotations

import os

from flask import Flask, redirect, request, session
from werkzeug.wrappers import Response

from queue_workflows.flask import init_app

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


def authorize(user: str, verb: str, _target: str) -> bool:
    """A viewer looks, an operator does everything; `verb` is `look` or an act such as `job.cancel`."""
    role, _password = USERS.get(user, ("", ""))
    return role == "operator" or (role == "viewer" and verb == "look")


init_app(app, user=lambda kept: kept.get("user"), authorize=authorize)
