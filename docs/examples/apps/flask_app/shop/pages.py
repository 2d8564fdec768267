"""What customers ask for."""

from __future__ import annotations

import os
from secrets import compare_digest
from typing import Any
from uuid import UUID

from flask import Blueprint, abort, request
from flask import session as signed_in

from queue_workflows import RunRepository, start_run  # qwf
from shop.database import Order, session
from shop.tasks import send_receipt

SOLD_OUT = {"unicorn"}
blueprint = Blueprint("pages", __name__)


@blueprint.post("/orders")
def take_order() -> tuple[dict[str, int], int]:
    """The order and the job of its receipt are one transaction: both are there, or neither is."""
    new = request.get_json()
    with session.begin():
        order = Order(item=new["item"], email=new["email"])
        session.add(order)
        session.flush()
        send_receipt.enqueue({"order_id": order.id}, conn=session)
        if order.item in SOLD_OUT:
            abort(409, f"{order.item} is sold out")
        return {"id": order.id}, 201


@blueprint.get("/orders/<int:order_id>")
def show_order(order_id: int) -> dict[str, Any]:
    """What became of it."""
    order = session.get(Order, order_id) or abort(404)
    return {"item": order.item, "receipt": order.receipt}


@blueprint.post("/reports")
def order_report() -> tuple[dict[str, str], int]:
    """Begin a run of the workflow `report`, in this request's transaction."""
    with session.begin():
        run = start_run("report", {"title": request.args.get("title", "Sales")}, conn=session)
        return {"id": str(run.id)}, 202


@blueprint.get("/reports/<uuid:run_id>")
def show_report(run_id: UUID) -> dict[str, Any]:
    """How far it is, and its text once it is there."""
    run = RunRepository(session).fetch(run_id) or abort(404)
    return {"status": run.status, "outputs": run.outputs}


@blueprint.post("/sign-in")
def sign_in() -> tuple[str, int]:
    """The staff's door; your application has users of its own."""
    if not compare_digest(request.form.get("password", ""), os.environ["STAFF_PASSWORD"]):
        abort(401)
    signed_in["user"] = "staff"
    return "", 204
