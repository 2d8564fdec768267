"""What customers ask for."""

import json
from uuid import UUID

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from queue_workflows import RunRepository, start_run  # qwf
from shop.models import Order
from shop.tasks import send_receipt

SOLD_OUT = {"unicorn"}


class SoldOut(Exception):
    """There is none left."""


@csrf_exempt
@require_POST
def take_order(request: HttpRequest) -> JsonResponse:
    """The order and the job of its receipt are one transaction: both are there, or neither is."""
    new = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(item=new["item"], email=new["email"])
            send_receipt.enqueue({"order_id": order.id}, conn=connection)
            if order.item in SOLD_OUT:
                raise SoldOut
    except SoldOut:
        return JsonResponse({"error": f"{new['item']} is sold out"}, status=409)
    return JsonResponse({"id": order.id}, status=201)


@require_GET
def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """What became of it."""
    order = get_object_or_404(Order, id=order_id)
    return JsonResponse({"item": order.item, "receipt": order.receipt})


@csrf_exempt
@require_POST
@transaction.atomic
def order_report(request: HttpRequest) -> JsonResponse:
    """Begin a run of the workflow `report`, in this request's transaction."""
    run = start_run("report", {"title": request.GET.get("title", "Sales")}, conn=connection)
    return JsonResponse({"id": str(run.id)}, status=202)


@require_GET
def show_report(request: HttpRequest, run_id: UUID) -> JsonResponse:
    """How far it is, and its text once it is there."""
    run = RunRepository(connection).fetch(run_id)
    if run is None:
        return JsonResponse({"error": "there is no such report"}, status=404)
    return JsonResponse({"status": run.status, "outputs": run.outputs})
