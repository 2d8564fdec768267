"""The page by keyboard alone: rows, the filter, the menu, the help, the theme, and an act to its end."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from support.browser.chromium import Page, Tabs, expect
from support.rows.jobs import Jobs
from support.servers.browsed_page import BrowsedPage

from queue_workflows.web.rendering.texts import SECTIONS

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MOST_STEPS = 80
_FOCUSED = "() => document.activeElement.textContent.trim()"


@pytest.fixture
def tab(reader: Tabs, page: BrowsedPage, ingest: Jobs) -> Page:
    """The list of three jobs, of which the newest comes first."""
    ingest.enqueue(3)
    # Each test's page has a port, and with it a memory, of its own.
    reader.only.goto(f"{page.url}/jobs")
    return reader.only


def names(tab: Page) -> list[str]:
    """The jobs of the list in their order."""
    return tab.locator("table.data tbody tr td a.mono[href*='/jobs/']").all_text_contents()


def tab_to(tab: Page, text: str) -> None:
    """Press Tab until something with this text has the focus."""
    for _ in range(MOST_STEPS):
        tab.keyboard.press("Tab")
        if tab.evaluate(_FOCUSED) == text:
            return
    raise AssertionError(f"{text} is not reached by Tab")


def test_rows(tab: Page) -> None:
    """j goes down and k up, neither beyond the last, and Enter opens the job."""
    first, second, third = names(tab)
    for key, focused in (
        ("j", first),
        ("j", second),
        ("k", first),
        ("k", first),
        ("j", second),
        ("j", third),
    ):
        tab.keyboard.press(key)
        expect(tab.get_by_role("link", name=focused)).to_be_focused()
    tab.keyboard.press("j")
    expect(tab.get_by_role("link", name=third)).to_be_focused()
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/jobs/{third}")


def test_a_row_is_picked(tab: Page) -> None:
    """x picks the row that has the focus, and takes it back."""
    (first, *_others) = names(tab)
    tab.keyboard.press("j")
    tab.keyboard.press("x")
    expect(tab.get_by_role("checkbox", name=f"Pick {first}")).to_be_checked()
    tab.keyboard.press("x")
    expect(tab.get_by_role("checkbox", name=f"Pick {first}")).not_to_be_checked()


def test_the_filter(tab: Page) -> None:
    """/ goes to the filter, in which letters are letters; Escape leaves it."""
    field = tab.get_by_role("textbox", name="Filter")
    tab.keyboard.press("/")
    expect(field).to_be_focused()
    tab.keyboard.type("gjt?")
    expect(field).to_have_value("gjt?")
    tab.keyboard.press("Escape")
    expect(field).not_to_be_focused()
    expect(tab.locator("dialog[open]")).to_have_count(0)


def test_the_menu(tab: Page) -> None:
    """g and a letter go to a page of the menu: each entry has the letter that it is listed with."""
    keys = "() => [...document.querySelectorAll('.pages a')].map((a) => [a.dataset.key, a.pathname])"
    listed = {(section.letter, section.path) for section in SECTIONS}
    assert {(key, path) for key, path in tab.evaluate(keys)} == listed
    # Without the g before them t and k are keys of their own.
    for section in [section for section in SECTIONS if section.letter in "tk"] + [SECTIONS[-1]]:
        tab.keyboard.press("g")
        tab.keyboard.press(section.letter)
        tab.wait_for_url(lambda url, path=section.path: urlsplit(url).path == path)
        expect(tab.locator(".pages:visible a[aria-current=page]")).to_contain_text(section.label)


def test_no_letter_stands_for_two_pages() -> None:
    """Each entry of the menu has a letter of its own."""
    letters = [section.letter for section in SECTIONS]
    assert sorted(set(letters)) == sorted(letters)


def test_the_help(tab: Page) -> None:
    """? shows every key, holds the focus, and goes away with Escape."""
    tab.keyboard.press("?")
    dialog = tab.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_be_visible()
    tab.keyboard.press("j")
    expect(dialog).to_be_visible()
    tab.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()


def test_the_theme_is_remembered(tab: Page) -> None:
    """t turns light to dark, and it is dark on the next page too."""
    tab.emulate_media(color_scheme="light")
    dark = "() => getComputedStyle(document.body).backgroundColor"
    light_colour = tab.evaluate(dark)
    tab.keyboard.press("t")
    dark_colour = tab.evaluate(dark)
    assert light_colour != dark_colour
    tab.reload()
    assert tab.evaluate(dark) == dark_colour


def test_the_first_tab_skips_the_menu(tab: Page) -> None:
    """What comes first leads past the menu to the page itself."""
    tab_to(tab, "Skip to the page")
    tab.keyboard.press("Enter")
    expect(tab.locator("main")).to_be_focused()


def test_a_job_is_cancelled(tab: Page, ingest: Jobs) -> None:
    """From the list to the end of the act no pointer is needed."""
    first = names(tab)[0]
    tab.keyboard.press("j")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/jobs/{first}")
    tab_to(tab, "Cancel")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", name=f"Cancel {first}")).to_be_visible()
    tab_to(tab, f"Cancel {first}")
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("Done.")).to_be_visible()
    assert ingest.seen(int(first.partition(":")[2]), "status") == ("cancelled",)
