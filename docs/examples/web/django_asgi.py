"""The operator's page below /ops of a Django project, for the users that its session knows.

It runs by `SECRET_KEY=… QWF_DB_URL=… uvicorn django_asgi:app`, with Django and queue-workflows[web].
"""

import os
from importlib import import_module

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.urls import path
from starlette.requests import Request

from queue_workflows.web import create_app

# In a project of your own all this stands in settings.py, and the users are those of django.contrib.auth.
SESSIONS = "django.contrib.sessions"
MIDDLEWARE = [f"{SESSIONS}.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY=os.environ["SECRET_KEY"], ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    INSTALLED_APPS=[SESSIONS], MIDDLEWARE=MIDDLEWARE, SESSION_ENGINE=f"{SESSIONS}.backends.signed_cookies",
    SESSION_COOKIE_SAMESITE="Strict",
)  # fmt: skip
USERS = {"ada": ("operator", "ada's password"), "vic": ("viewer", "vic's password")}
FORM = """<!doctype html><title>Sign in</title><form method="post"><input type="hidden"
name="csrfmiddlewaretoken" value="{}"><label>Name <input name="name"></label>
<label>Password <input name="password" type="password"></label> <button>Sign in</button></form>"""


def sign_in(request: HttpRequest) -> HttpResponse:
    """Where a user says who it is."""
    name, password = request.POST.get("name", ""), request.POST.get("password")
    if name in USERS and USERS[name][1] == password:
        request.session["user"] = name
        return HttpResponseRedirect("/ops/jobs")
    return HttpResponse(FORM.format(get_token(request)), status=401 if password else 200)


def user_of(request: Request) -> str | None:
    """The signed-in user, from the session of Django; django.contrib.auth keeps `_auth_user_id` there."""
    sessions = import_module(settings.SESSION_ENGINE)
    return sessions.SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME)).get("user")


def authorize(user: str, verb: str, _target: str) -> bool:
    """A viewer looks, an operator does everything; `verb` is `look` or an act such as `job.cancel`."""
    role, _password = USERS.get(user, ("", ""))
    return role == "operator" or (role == "viewer" and verb == "look")


urlpatterns = [path("", sign_in)]
django = get_asgi_application()
ops = create_app(None, authorize=authorize, user=user_of, prefix="/ops", hosts=settings.ALLOWED_HOSTS)


async def app(scope, receive, send) -> None:
    """What is below /ops is the page's, the rest is Django's."""
    await (ops if scope.get("path", "").startswith("/ops/") else django)(scope, receive, send)
