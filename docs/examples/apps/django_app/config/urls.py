"""The project's addresses; the operator's page below /ops/ is put beside them in asgi.py."""

from django.contrib.auth.views import LoginView
from django.urls import include, path

urlpatterns = [
    path("", include("shop.urls")),
    path("sign-in/", LoginView.as_view(template_name="shop/sign_in.html")),
]
