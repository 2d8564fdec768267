"""A little shop: orders, receipts that a job sends, and a report that a workflow writes."""

from __future__ import annotations

import os

from flask import Flask

from queue_workflows.flask import init_app  # qwf


def create_app() -> Flask:
    """The service, with its own pages and the operator's."""
    from shop import database, pages

    app = Flask(__name__)
    app.config.update(SECRET_KEY=os.environ["SECRET_KEY"], SESSION_COOKIE_SAMESITE="Strict")
    database.init_app(app)
    app.register_blueprint(pages.blueprint)
    init_app(app, user=lambda session: session.get("user"), authorize=lambda *_: True)  # qwf
    return app
