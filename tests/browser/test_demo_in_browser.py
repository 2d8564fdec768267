"""`qwf demo --in-browser`: a run watched live from its start, answered by its form, and seen to its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.browser.chromium import Tabs, expect
from support.processes.embedded_users import unset_environment
from support.processes.programs import Running
from support.servers.browsed_page import CONFIRM

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_MS = 300_000


def test_the_film_is_watched_and_its_question_answered(qwf_new_database, tabs: Tabs, tmp_path: Path) -> None:
    """The page turns live from the first node to the question, takes the answer, and shows the end."""
    dsn = qwf_new_database(template=False)
    command = [sys.executable, "-m", "queue_workflows", "--db", dsn, "demo", "--in-browser"]
    env = unset_environment(tmp_path) | {"PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
    with Running(command, env=env, cwd=tmp_path) as demo:
        address = next(line.split()[1] for line in iter(demo.line, "") if line.startswith("page "))
        tab = tabs.open()
        tab.goto(address)
        tab.goto(address.partition("/?")[0] + "/runs")
        tab.get_by_role("row", name="film").first.get_by_role("link").first.click(timeout=PATIENCE_MS)
        tab.evaluate("() => { window.loadedOnce = true; }")
        answer = tab.get_by_role("link", name="Answer approve")
        expect(answer).to_be_visible(timeout=PATIENCE_MS)
        assert tab.evaluate("() => window.loadedOnce")
        # It goes on being watched where the answer is not given, as the demo ends with its film.
        watching = tab.context.new_page()
        watching.goto(tab.url)
        expect(watching.locator("[data-live-mark]")).to_have_attribute("data-state", "live")
        answer.click()
        tab.get_by_role("button", name="Answer").click()
        tab.get_by_label("ok").select_option("yes")
        tab.get_by_role("button", name="Show what it would be").click()
        tab.locator(CONFIRM).click()
        expect(tab.get_by_text("Done.")).to_be_visible()
        expect(watching.locator("main .lead")).to_contain_text("completed", timeout=PATIENCE_MS)
        said = list(iter(demo.line, ""))
        assert demo.status(300) == 0
    assert "approve   answered on the operator's page" in said
    assert tabs.complaints == []
