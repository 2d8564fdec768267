"""What an ASGI server serves: `uvicorn config.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_asgi_application()

from queue_workflows.django.asgi import with_operators_page  # noqa: E402 # qwf

application = with_operators_page(application, "/ops")  # qwf
