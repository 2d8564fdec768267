"""The application, for `flask --app shop.wsgi run` and for `qwf --app shop.wsgi worker`."""

from shop import create_app

app = create_app()
