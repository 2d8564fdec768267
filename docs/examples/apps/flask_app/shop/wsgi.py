"""The application of a WSGI server (`flask --app shop.wsgi run`), and of the workers (`qwf --app shop.wsgi worker`)."""

from shop import create_app

app = create_app()
