"""Takes the pictures of the operator's page that stand in the docs: from the demo's data, light and dark.

    .venv/bin/python scripts/screenshots.py [DIRECTORY] [--width PIXELS]

It needs Debian's `chromium` and the development dependencies, and writes docs/images unless told. The
demo's processes are at work meanwhile: one film more waits for its answer, and some jobs for a worker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from playwright.sync_api import Browser, sync_playwright

from queue_workflows import enqueue_ingest_job, start_run
from queue_workflows.cli.shared.operator import asking_user
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.demo.processes import at_work
from queue_workflows.demo.story import FILM
from queue_workflows.web.serving import Served, served_page

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 1280
HEIGHT: Final = 800
RUNS: Final = 2
WAITING: Final = 12
PATIENCE_S: Final = 60.0
PAGES: Final = {
    "overview": "/",
    "jobs": "/jobs",
    "run": "/runs/{asking}",
    "timeline": "/runs/{made}?view=timeline",
    "job": "/jobs/{job}",
    "workflow": "/workflows/film",
    "queue": "/queues/fetch",
}
LAST_RUN: Final = "SELECT id FROM workflow_runs WHERE status = 'completed' ORDER BY id DESC LIMIT 1"
IS_ASKED: Final = """
SELECT EXISTS (SELECT FROM workflow_node_jobs WHERE run_id = :run AND status = 'awaiting_input')
"""


def main() -> None:
    """Run the demo a few times, leave it at work with something to see, and look at it."""
    parser = argparse.ArgumentParser(description="Take the pictures of the operator's page.")
    parser.add_argument("directory", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--width", type=int, default=WIDTH)
    asked = parser.parse_args()
    images: Path = asked.directory
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("screenshots: there is no chromium; `apt-get install chromium` brings one")
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["QWF_DATA_DIR"] = home
        os.environ.pop("QWF_DB_URL", None)
        with Database.open(None, role="screenshots") as database:
            for _ in range(RUNS):
                demo = [sys.executable, "-m", "queue_workflows", "demo", "--yes"]
                subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)
            with at_work(None), _page(database) as served, sync_playwright() as playwright:
                names = _leave_something(database)
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                _take(browser, served, names, images, asked.width)
                browser.close()


def _leave_something(database: Database) -> Mapping[str, str]:
    """A film that waits for its answer, and jobs without a worker; the names of what is shown."""
    with database.engine.begin() as connection:
        made = connection.execute(sa.text(LAST_RUN)).scalar_one()
        asking = start_run(FILM, {"brief": "a lighthouse in the fog"}, conn=connection)
        waiting = [
            enqueue_ingest_job("fetch_page", queue="fetch", args={"page": number}, conn=connection)
            for number in range(WAITING)
        ]
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with database.engine.connect() as connection:
            if connection.execute(sa.text(IS_ASKED), {"run": asking.id}).scalar_one():
                return {"made": str(made), "asking": str(asking.id), "job": f"ingest:{waiting[-1].id}"}
        time.sleep(0.2)
    raise SystemExit("screenshots: the film has not come to its question")


@contextmanager
def _page(database: Database) -> Iterator[Served]:
    settings = effective_settings()
    with served_page(database, user=asking_user(), settings=settings, port=0) as served:
        yield served


def _take(browser: Browser, served: Served, names: Mapping[str, str], images: Path, width: int) -> None:
    first = browser.new_context()
    first.new_page().goto(served.first_url)
    signed_in = first.storage_state()
    for scheme in ("light", "dark"):
        context = browser.new_context(
            storage_state=signed_in,
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        for name, place in PAGES.items():
            page = context.new_page()
            page.goto(served.url + place.format(**names))
            page.wait_for_load_state("load")
            # On a busy machine its stream comes later.
            if page.locator("[data-live-mark]").count():
                page.wait_for_selector("[data-live-mark][data-state=live]")
            page.screenshot(path=images / f"{name}-{scheme}.png")
            page.close()
            print(images / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
