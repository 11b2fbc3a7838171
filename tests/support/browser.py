"""The Chromium that is installed, driven by playwright, and pages that may not fail silently."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

TIMEOUT_MS = 60_000

ADVICE = "Chromium is not installed: apt-get install chromium"


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser, without a window."""
    expect.set_options(timeout=TIMEOUT_MS)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(ADVICE)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield running
        finally:
            running.close()


@contextmanager
def page(
    running: Browser, *, expected_errors: tuple[str, ...] = (), **options: Any
) -> Iterator[Page]:
    """A page of its own. At the end it has logged no error, and asked no other host.

    Parameters:
        expected_errors: parts of messages that may be logged.
        options: of the context.
    """
    given = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
    context = running.new_context(**given)
    own = context.new_page()
    own.set_default_timeout(TIMEOUT_MS)
    logged: list[str] = []
    hosts: set[str] = set()
    own.on("console", lambda m: logged.append(m.text) if m.type in ("error", "warning") else None)
    own.on("pageerror", lambda error: logged.append(str(error)))
    own.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    try:
        yield own
    finally:
        context.close()
    unexpected = [text for text in logged if not any(part in text for part in expected_errors)]
    assert unexpected == []
    assert len({host for host in hosts if host}) <= 1, hosts
