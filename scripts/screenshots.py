"""Takes the pictures of the operator's page that stand in the docs: from the demo's data, light and dark.

    .venv/bin/python scripts/screenshots.py [DIRECTORY]

It needs Debian's `chromium` and the development dependencies, and writes docs/images unless told otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from queue_workflows.cli.shared.operator import asking_user
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.web.serving import Served, served_page

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
SIZE: Final = {"width": 1280, "height": 800}
RUNS: Final = 3
# The workers that the demo had are shown although they are gone, so that there is something to see.
PAGES: Final = {
    "overview": "/",
    "jobs": "/jobs",
    "run": "/runs/{run}",
    "timeline": "/runs/{run}?view=timeline",
    "job": "/jobs/node:1",
    "workflow": "/workflows/film",
}


def main() -> None:
    """Run the demo a few times, and look at it."""
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
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
            with _page(database) as served, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                _take(browser, served, _last_run(database), images)
                browser.close()


@contextmanager
def _page(database: Database) -> Iterator[Served]:
    settings = effective_settings()
    with served_page(database, user=asking_user(), settings=settings, port=0) as served:
        yield served


def _last_run(database: Database) -> str:
    with database.connect(autocommit=True) as connection:
        row = connection.execute("SELECT id FROM workflow_runs ORDER BY id DESC LIMIT 1").fetchone()
    return str(row[0]) if row else ""


def _take(browser: Browser, served: Served, run: str, images: Path) -> None:
    first = browser.new_context()
    first.new_page().goto(served.first_url)
    signed_in = first.storage_state()
    for scheme in ("light", "dark"):
        context = browser.new_context(
            storage_state=signed_in, viewport=SIZE, color_scheme=scheme, reduced_motion="reduce"
        )
        for name, place in PAGES.items():
            page = context.new_page()
            page.goto(served.url + place.format(run=run))
            page.wait_for_load_state("load")
            # On a busy machine its stream comes later.
            if page.locator("[data-live-mark]").count():
                page.wait_for_selector("[data-live-mark][data-state=live]")
            page.screenshot(path=images / f"{name}-{scheme}.png")
            page.close()
            print(images / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
