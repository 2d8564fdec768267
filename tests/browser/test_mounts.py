"""The page mounted in applications of four frameworks, each as its example shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from support.browser.chromium import Page, Tabs, expect
from support.processes.programs import SOURCE, Running
from support.processes.workers import patiently
from support.rows.jobs import Jobs
from support.servers.browsed_page import CONFIRM
from support.servers.cluster import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "web"
SERVE_ASGI = (
    "import sys, uvicorn; uvicorn.run(sys.argv[1] + ':app', port=int(sys.argv[2]), log_level='warning')"
)
FLASK = ["-m", "flask", "--app", "flask_app", "run", "--port"]


@dataclass(frozen=True)
class Mounted:
    """An application with the page below /ops."""

    url: str
    is_live: bool


def command(example: str, port: int) -> list[str]:
    """How an example is served."""
    if example == "flask_app":
        return [sys.executable, *FLASK, str(port)]
    return [sys.executable, "-c", SERVE_ASGI, example, str(port)]


@pytest.fixture(scope="module", params=["starlette_app", "fastapi_app", "django_asgi", "flask_app"])
def mounted(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Mounted]:
    """Each example as a process."""
    port = free_port()
    env = {
        "PYTHONPATH": f"{SOURCE}:{EXAMPLES}",
        "QWF_DB_URL": qwf_dsn,
        "SECRET_KEY": "a secret of this test",
        "DJANGO_SETTINGS_MODULE": "",
    }
    with Running(command(request.param, port), env=env, cwd=EXAMPLES) as program:
        patiently(lambda: _answers(port) or program.process.poll() is not None)
        assert program.process.poll() is None
        yield Mounted(f"http://127.0.0.1:{port}", request.param != "flask_app")


def _answers(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def tab(reader: Tabs) -> Page:
    """A tab without a session; applications know nothing of the user that its requests name."""
    reader.only.context.clear_cookies()
    return reader.only


def signed_in(tab: Page, mounted: Mounted, name: str) -> None:
    """The user's tab, which the application led to the page."""
    tab.goto(mounted.url)
    tab.get_by_label("Name").fill(name)
    tab.get_by_label("Password").fill(f"{name}'s password")
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url(f"{mounted.url}/ops/jobs")


def test_nobody_sees_it_without_signing_in(mounted: Mounted, tab: Page, conn: psycopg.Connection) -> None:
    """The application's session decides, and a wrong password is none."""
    answer = tab.goto(f"{mounted.url}/ops/jobs")
    assert answer is not None
    assert answer.status == 401
    expect(tab.locator("body")).to_contain_text("You are not signed in")


def test_an_operator_finds_a_job_and_cancels_it(
    mounted: Mounted, reader: Tabs, tab: Page, ingest: Jobs, conn: psycopg.Connection
) -> None:
    """Every link leads below the prefix, files are found, and the audit log has the app's own user."""
    (job,) = ingest.enqueue()
    signed_in(tab, mounted, "ada")
    asked: list[tuple[str, int]] = []
    tab.on("response", lambda response: asked.append((response.url, response.status)))
    tab.reload()
    assert tab.evaluate("() => getComputedStyle(document.querySelector('.top')).display") == "grid"
    links = tab.evaluate(
        "() => [...document.querySelectorAll('a[href^=\"/\"]')].map((a) => a.getAttribute('href'))"
    )
    assert [link for link in links if not link.startswith("/ops/")] == []
    tab.get_by_role("link", name=f"ingest:{job}").click()
    tab.wait_for_url(f"{mounted.url}/ops/jobs/ingest:{job}")
    tab.get_by_role("button", name="Cancel", exact=True).click()
    expect(tab.get_by_role("heading", name=f"Cancel ingest:{job}")).to_be_visible()
    tab.get_by_label("Reason").fill("not wanted any more")
    tab.locator(CONFIRM).click()
    expect(tab.get_by_text("Done.")).to_be_visible()
    tab.get_by_role("link", name="Back").click()
    tab.wait_for_url(f"{mounted.url}/ops/jobs/ingest:{job}")
    assert ingest.seen(job, "status") == ("cancelled",)
    assert conn.execute("SELECT actor, action, reason FROM audit_log").fetchall() == [
        ("ada", "job.cancel", "not wanted any more")
    ]
    assert [(url, status) for url, status in asked if status >= 400] == []
    assert reader.complaints == []


def test_a_viewer_only_looks(mounted: Mounted, tab: Page, ingest: Jobs) -> None:
    """It is offered no act, and one that it asks for by hand is refused."""
    (job,) = ingest.enqueue()
    signed_in(tab, mounted, "vic")
    tab.get_by_role("link", name=f"ingest:{job}").click()
    tab.wait_for_url(f"{mounted.url}/ops/jobs/ingest:{job}")
    expect(tab.get_by_role("button", name="Cancel")).to_have_count(0)
    answer = tab.goto(f"{mounted.url}/ops/act/preview?act=job.cancel&target=ingest:{job}")
    assert answer is not None
    assert answer.status == 403
    expect(tab.locator("body")).to_contain_text("You may not do this")
    assert ingest.seen(job, "status") == ("queued",)


def test_the_page_keeps_up(mounted: Mounted, reader: Tabs, tab: Page, ingest: Jobs) -> None:
    """By its stream where the server is an ASGI one; where it is not, the page is loaded again by itself."""
    ingest.enqueue()
    signed_in(tab, mounted, "ada")
    if mounted.is_live:
        expect(tab.locator("[data-live-mark]")).to_have_attribute("data-state", "live")
    tab.evaluate("() => { window.loadedOnce = true; }")
    ingest.one("w7", lease_s=600)
    expect(tab.get_by_text("on w7")).to_be_visible()
    assert tab.evaluate("() => window.loadedOnce === true") is mounted.is_live
    assert reader.complaints == []
