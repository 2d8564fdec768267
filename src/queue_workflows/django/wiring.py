"""For `--app` and QWF_APP: the project of DJANGO_SETTINGS_MODULE, set up.

`manage.py qwf` names it for the processes that it starts, which are none of Django's.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.exceptions import ImproperlyConfigured

from queue_workflows.errors import ConfigurationError

NAME = "queue_workflows.django"

try:
    _ = settings.INSTALLED_APPS
except ImproperlyConfigured as error:
    raise ConfigurationError(
        f"Django has no settings: {ENVIRONMENT_VARIABLE} is not set",
        advice="run `python manage.py qwf …`, or set it to your project's settings, such as shop.settings",
    ) from error
if not apps.ready:
    django.setup()
if not apps.is_installed(NAME):
    raise ConfigurationError(f"the Django project has no {NAME!r}", advice=f"add {NAME!r} to INSTALLED_APPS")
