"""Chromium, headless, and pages of a server that a script answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.page_server import PageServer
from support.scripted import Script, ScriptedModel

NAMES = ("chromium", "chromium-browser", "google-chrome")


def _chromium() -> str:
    found = os.environ.get("DS4_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        message = "there is no Chromium (on Debian: apt-get install chromium; or set DS4_CHROMIUM to its path)"
        if os.environ.get("DS4_REQUIRE_CHROMIUM"):
            pytest.fail(message)
        pytest.skip(message)
    return found


# Of one file, not of the session: while it lives, an event loop counts as running in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    path = _chromium()
    sync_api.expect.set_options(timeout=15_000)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


class Tab:
    """A page with what went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.requests: list[Any] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.goto(url)

    def say(self, text: str) -> None:
        self.page.locator("#text").fill(text)
        self.page.locator("#text").press("Enter")

    def wait(self) -> None:
        """Until the answer is over."""
        self.page.locator("#stop").wait_for(state="hidden")

    @property
    def answer(self) -> Any:
        return self.page.locator("article.assistant").last


Open = Callable[..., Tab]


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Open]:
    """Open the page of a server whose model follows a script; nothing may go wrong in it unless the test says so."""
    servers: list[PageServer] = []
    tabs: list[Tab] = []

    def start(script: Script | Any, *, seconds_a_token: float = 0.0, **settings: Any) -> Tab:
        model = ScriptedModel(script, seconds_a_token=seconds_a_token) if callable(script) else script
        servers.append(PageServer(model, **settings).__enter__())
        tabs.append(Tab(browser, servers[-1].url))
        return tabs[-1]

    yield start
    for tab in tabs:
        tab.context.close()
    for server in servers:
        server.__exit__()
    assert [problem for tab in tabs for problem in tab.problems] == []
