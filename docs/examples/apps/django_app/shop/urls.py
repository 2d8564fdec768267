"""The shop's addresses."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders", views.take_order),
    path("orders/<int:order_id>", views.show_order),
    path("reports", views.order_report),
    path("reports/<uuid:run_id>", views.show_report),
]
