"""What a Flask application gets: a context around its jobs, and the operator's page if it says for whom."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, current_app, session

from queue_workflows.config import current_config, reset_config, set_invoke_context
from queue_workflows.errors import ConfigurationError
from queue_workflows.flask import init_app


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    """Each test has its own applications."""
    reset_config()
    yield
    reset_config()


@pytest.fixture
def app() -> Flask:
    """One with a door, which lets everybody in by a name of its own."""
    made = Flask("shop")
    made.config["SECRET_KEY"] = "a secret of this test"

    @made.get("/sign-in/<name>")
    def sign_in(name: str) -> str:
        session["user"] = name
        return ""

    return made


def name_around_a_job() -> str:
    """Of the application that a job finds."""
    around = current_config().invoke_context
    assert around is not None
    with around(None, None):
        return current_app.name


def test_jobs_run_in_the_newest_application(app: Flask) -> None:
    """As a test suite makes many; without users there is no page."""
    init_app(app)
    assert name_around_a_job() == "shop"
    init_app(Flask("newer"))
    assert name_around_a_job() == "newer"
    assert app.test_client().get("/ops/jobs").status_code == 404


def test_a_context_of_the_apps_own_stays(app: Flask) -> None:
    """Whichever was first."""

    def around(_job: object, _run: object) -> Any:
        """The app's own."""

    set_invoke_context(around)
    init_app(app)
    assert current_config().invoke_context is around


def test_the_page_asks_the_session_of_flask(app: Flask) -> None:
    """Nobody is signed in at first; then `authorize` decides by the name. The page is below the prefix."""
    asked: list[tuple[str, str]] = []

    def authorize(user: str, verb: str, _target: str) -> bool:
        asked.append((user, verb))
        return False

    init_app(app, user=lambda kept: kept.get("user"), authorize=authorize, prefix="staff/")
    client = app.test_client()
    assert client.get("/staff/jobs").status_code == 401
    assert asked == []
    client.get("/sign-in/ada")
    assert client.get("/staff/jobs").status_code == 403
    assert asked == [("ada", "look")]


@pytest.mark.parametrize(
    "given", [{"user": lambda kept: None}, {"authorize": lambda *_: True}], ids=["user", "authorize"]
)
def test_who_and_what_belong_together(app: Flask, given: dict[str, Any]) -> None:
    """A page without either would be for nobody, or for everybody."""
    with pytest.raises(ConfigurationError, match="belong together"):
        init_app(app, **given)


def test_the_bridge_that_is_not_installed_is_named(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr("queue_workflows.flask.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="pip install a2wsgi"):
        init_app(app, user=lambda kept: None, authorize=lambda *_: True)


def test_a_server_that_forks_has_the_page_in_each_process(app: Flask) -> None:
    """Also where its parent has already answered a request: what that had running is not in the child."""
    init_app(app, user=lambda kept: None, authorize=lambda *_: True)
    before = threading.active_count()
    assert app.test_client().get("/ops/jobs").status_code == 401
    assert threading.active_count() > before
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(0 if app.test_client().get("/ops/jobs").status_code == 401 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
