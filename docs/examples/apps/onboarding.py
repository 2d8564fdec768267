"""An onboarding that lasts for days: plain code, which survives what happens to the process that runs it."""

from __future__ import annotations

from typing import Any

from queue_workflows import DurableContext, StepFailed, emit_event, ingest_task

SENT: list[str] = []


def create_user(ctx: DurableContext, email: str) -> int:
    """In this database: the row is there exactly once, as the step is stored in the same transaction."""
    connection = ctx.connection()
    connection.execute("CREATE TABLE IF NOT EXISTS users (id serial PRIMARY KEY, email text)")
    row = connection.execute("INSERT INTO users (email) VALUES (%s) RETURNING id", [email]).fetchone()
    assert row is not None
    return int(row[0])


def send_mail(email: str, text: str) -> None:
    """Elsewhere: at least once, so give the mail a key of its own if twice would be too often."""
    if email.endswith("@invalid"):
        raise ConnectionError("no such host")
    SENT.append(f"{email}: {text}")


@ingest_task("render", queue="load")
def render(reason: str | None, args: dict[str, Any]) -> str:
    """A page of the welcome package: any task may be a child."""
    return f"page {args['page']}"


@ingest_task("onboard", queue="fetch", durable=True, version="1")
def onboard(reason: str | None, args: dict[str, Any], *, ctx: DurableContext) -> dict[str, Any]:
    """Create the user, wait a day, ask, wait for the answer, and have the package rendered."""
    user = ctx.step("create", create_user, ctx, args["email"])
    ctx.sleep(days=1)
    try:
        ctx.step("ask", send_mail, args["email"], "is this you?", retries=2, backoff_s=1)
    except StepFailed:
        return {"user": user, "state": "unreachable"}
    answer = ctx.wait_event(f"confirmed:{user}", timeout=7 * 86_400, default=None)
    if answer is None:
        return {"user": user, "state": "silent"}
    pages = ctx.gather(*[ctx.spawn(render, {"page": page}) for page in range(args["pages"])])
    return {"user": user, "state": "done", "pages": pages, "answer": answer}


def confirm(user: int, answer: str, conn: Any = None) -> None:
    """What a web handler does, in its own transaction."""
    emit_event(f"confirmed:{user}", answer, conn=conn)
