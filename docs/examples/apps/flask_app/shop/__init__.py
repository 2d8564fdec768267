"""A little shop: orders, receipts that a job sends, and a report that a workflow writes."""

from __future__ import annotations

import os

from flask import Flask


def create_app() -> Flask:
    """The service, with its own pages and the operator's."""
    from queue_workflows import set_invoke_context  # qwf
    from shop import database, operators, pages

    app = Flask(__name__)
    app.config.update(SECRET_KEY=os.environ["SECRET_KEY"], SESSION_COOKIE_SAMESITE="Strict")
    database.init_app(app)
    app.register_blueprint(pages.blueprint)
    app.wsgi_app = operators.with_page(app)  # qwf
    set_invoke_context(lambda _job, _run: app.app_context())  # qwf
    return app
