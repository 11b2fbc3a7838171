"""The site is built without a warning, works from disk, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import browser, page
from tests.support.places import DOCS, ROOT

pytestmark = pytest.mark.slow

_LOADED = re.compile(r"<(?!a\b)[a-z]+ [^>]*?(?:src|href)=\"?(https?:[^\" >]*|//[^\" >]*)")
_PICTURE = re.compile(r"<(?:img|source) [^>]*?(?:src|srcset)=\"?([^\" >]+)")
NARROW = 420
SHOWN = [
    "index.html",
    "start/tutorial.html",
    "examples/fraud.html",
    "reference/commands.html",
    "reference/api/statekit.html",
    "reference/api/statekit.sinks.html",
    "coming-from/flink.html",
    "operate/monitoring.html",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    home = tmp_path_factory.mktemp("site")
    words = ["mkdocs", "build", "--strict", "--config-file", str(DOCS / "site" / "mkdocs.yml")]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--site-dir", str(home)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


def test_each_page_of_the_documents_is_a_page_of_the_site(site: Path) -> None:
    for source in DOCS.rglob("*.md"):
        name = source.relative_to(DOCS).with_suffix(".html")
        built = site / (name.with_name("index.html") if source.stem == "README" else name)
        assert built.exists(), f"{source} is not built"


def test_the_reference_of_a_state_has_what_functions_call(site: Path) -> None:
    page = (site / "reference/api/statekit.html").read_text()
    for name, members in {
        "ValueState": "clear exists expire_in get update value",
        "OperatorListState": "append clear count extend get index update",
    }.items():
        found = set(re.findall(rf"id=\"?statekit\.{name}\.(\w+)", page))
        assert found
        assert found <= {*members.split()}


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 150
    for built in pages:
        assert _LOADED.findall(built.read_text()) == [], built.name


def test_each_picture_is_there(site: Path) -> None:
    count = 0
    for built in site.rglob("*.html"):
        for name in _PICTURE.findall(built.read_text()):
            if not name.startswith("data:"):
                assert (built.parent / name).exists(), f"{built} shows {name}"
                count += 1
    assert count > 5


def test_the_reference_has_every_public_name_of_a_job(site: Path) -> None:
    text = (site / "reference/api/statekit.html").read_text()
    for name in ("statekit.Job.run", "statekit.process", "statekit.MapState", "statekit.KVStore"):
        assert f'id="{name}"' in text
    commands = (site / "reference/commands.html").read_text()
    for name in ("run", "check", "submit", "rescale", "serve"):
        assert f'id="statekit-{name}"' in commands


@pytest.mark.parametrize("width", [1280, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_from_disk_fit_their_window_and_ask_no_host(
    site: Path, chromium: Browser, width: int, scheme: str
) -> None:
    asked = []
    size = {"width": width, "height": 900}
    with page(chromium, viewport=size, color_scheme=scheme) as shown:
        shown.on("request", lambda request: asked.append(request.url))
        for name in SHOWN:
            shown.goto((site / name).as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= width, name
    assert [url for url in asked if url.startswith("http")] == []


def test_the_search_works_from_disk(site: Path, chromium: Browser) -> None:
    with page(chromium) as shown:
        shown.goto((site / "guide/joins.html").as_uri())
        shown.click("input[name=query]")
        shown.keyboard.type("savepoint", delay=20)
        found = shown.locator(".md-search-result__link").first
        found.wait_for()
        found.click()
        shown.wait_for_url("**/operate/savepoints.html**")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("deduplicate", "guide/per-key.html"),
        ("session window", "guide/windows.html"),
        ("debug failed epoch", "guide/replay.html"),
        ("bootstrap", "guide/bootstrap.html"),
        ("restore savepoint", "operate/savepoints.html"),
        ("rescale", "operate/rescaling.html"),
        ("add a field", "guide/evolution.html"),
        ("top n", "guide/per-key.html"),
        ("enrich", "guide/services.html"),
        ("serve state", "operate/serving.html"),
        ("exit code", "operate/running-jobs.html"),
        ("submit job", "operate/job-server.html"),
    ],
)
def test_the_search_finds_the_page_of_a_task_first(
    site: Path, chromium: Browser, typed: str, name: str
) -> None:
    with page(chromium) as shown:
        shown.goto((site / "index.html").as_uri())
        shown.click("input[name=query]")
        shown.keyboard.type(typed, delay=20)
        expect(shown.locator(".md-search-result__meta")).to_contain_text("matching")
        found = shown.locator(".md-search-result__link").first
        expect(found).to_have_attribute("href", re.compile(re.escape(name)))
