"""The application: of a WSGI server (`flask --app shop.wsgi run`) and of workers (`qwf --app shop.wsgi worker`)."""

from shop import create_app

app = create_app()
