"""The web service: `uvicorn shop.main:app`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import compare_digest
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Form, HTTPException, Request
from pydantic import BaseModel
from starlette.middleware.sessions import SessionMiddleware

from queue_workflows import RunRepository, astart_run  # qwf
from queue_workflows.web import create_app  # qwf
from shop.database import Order, Transaction, engine
from shop.tasks import send_receipt

SOLD_OUT = {"unicorn"}


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Let go of the database at the end."""
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=os.environ["SECRET_KEY"], same_site="strict")


class NewOrder(BaseModel):
    """What a customer sends."""

    item: str
    email: str


@app.post("/orders", status_code=201)
async def take_order(new: NewOrder, session: Transaction) -> dict[str, int]:
    """The order and the job of its receipt are one transaction: both are there, or neither is."""
    order = Order(item=new.item, email=new.email)
    session.add(order)
    await session.flush()
    await send_receipt.aenqueue({"order_id": order.id}, conn=session)
    if new.item in SOLD_OUT:
        raise HTTPException(409, f"{new.item} is sold out")
    return {"id": order.id}


@app.get("/orders/{order_id}")
async def show_order(order_id: int, session: Transaction) -> dict[str, Any]:
    """What became of it."""
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"item": order.item, "receipt": order.receipt}


@app.post("/reports", status_code=202)
async def order_report(session: Transaction, title: str = "Sales") -> dict[str, str]:
    """Begin a run of the workflow `report`, in this request's transaction."""
    run = await astart_run("report", {"title": title}, conn=session)
    return {"id": str(run.id)}


@app.get("/reports/{run_id}")
async def show_report(run_id: UUID, session: Transaction) -> dict[str, Any]:
    """How far it is, and its text once it is there."""
    run = await RunRepository(session).afetch(run_id)
    if run is None:
        raise HTTPException(404)
    return {"status": run.status, "outputs": run.outputs}


@app.post("/sign-in", status_code=204)
def sign_in(request: Request, password: Annotated[str, Form()]) -> None:
    """The staff's door; your application has users of its own."""
    if not compare_digest(password, os.environ["STAFF_PASSWORD"]):
        raise HTTPException(401)
    request.session["user"] = "staff"


page = create_app(None, user=lambda asked: asked.session.get("user"), authorize=lambda *_: True)  # qwf
app.mount("/ops", page)  # qwf
