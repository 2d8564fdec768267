"""The system's own Chromium, driven by playwright, and what its pages complain of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from support.suite.missing import missing

try:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Page,
        Route,
        expect,
        sync_playwright,
    )
except ModuleNotFoundError:
    missing("playwright is not installed")

# What tests of the browser need of its driver they import from here, so that without it they are skipped.
__all__ = ["PATIENCE_MS", "Browser", "Page", "Route", "Tabs", "chromium", "expect"]

# The machine may be busy with other tests: what has not come by then does not come.
PATIENCE_MS: Final = 90_000
_NOT_LOADED: Final = "Failed to load resource"
_TELL_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))
"""


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """A browser of its own; root runs one only without its sandbox."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("there is no chromium on PATH")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", *arguments], timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tabs:
    """Tabs of one browser; `complaints` has what their consoles and the content security policy said."""

    browser: Browser
    complaints: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def open(self, user: str | None = None, **options: Any) -> Page:
        """A new tab, which shares nothing with the others, of a user that a request names by its header."""
        headers = {} if user is None else {"X-User": user}
        context = self.browser.new_context(extra_http_headers=headers, **options)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_TELL_VIOLATIONS)
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.complaints.append(f"raised: {error.error}"))
        self.contexts.append(context)
        return context.new_page()

    @property
    def only(self) -> Page:
        """The tab, where one was opened."""
        ((tab,),) = (context.pages for context in self.contexts)
        return tab

    def close(self) -> None:
        """Close every tab."""
        for context in self.contexts:
            context.close()
        self.contexts.clear()

    def _hear(self, message: ConsoleMessage) -> None:
        """A page that says what is missing has a status that a browser complains of; so has no icon."""
        url = message.location["url"]
        is_told = (message.page is not None and url == message.page.url) or url.endswith("/favicon.ico")
        if message.type in ("error", "warning") and not (is_told and message.text.startswith(_NOT_LOADED)):
            self.complaints.append(f"{message.type}: {message.text} ({url})")
