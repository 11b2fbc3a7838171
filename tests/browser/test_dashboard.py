"""The dashboard in a real browser, over a real server and a job that commits meanwhile."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import time
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import statekit as sk
from tests.support.browser import browser, page
from tests.support.effort import SOAK
from tests.support.served import server

EVIL = '<img src=x onerror="document.title=1">'


class Visit(NamedTuple):
    site: str
    page: str
    at: dt.datetime
    cents: int


class Last(NamedTuple):
    page: str
    cents: int


@sk.process(key="site", event_time="at", lateness="1 hour")
def visits(
    visit: Visit,
    ctx: sk.Context,
    last: sk.ValueState[Last],
    pages: sk.MapState[str, int],
    log: sk.ListState[int],
    recent: Annotated[sk.ValueState[int], sk.TTL("1 day", clock="event")],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
) -> Iterator[Last]:
    last.update(Last(visit.page, visit.cents))
    pages[visit.page] = pages.get(visit.page, 0) + 1
    log.append(visit.cents)
    recent.update(visit.cents)
    total.add(visit.cents)
    ctx.timers.replace(visit.at + dt.timedelta(hours=3))
    yield Last(visit.page, visit.cents)


@visits.on_timer
def closed(timer: sk.Timer, ctx: sk.Context[str]) -> Iterator[Last]:
    yield Last(ctx.key, 0)


def job() -> sk.Job:
    built = sk.Job("site")
    visited = built.source("records", Visit).process(visits)
    visited.aggregate(key="page", cents=sk.Sum("cents"))
    return built


FOCUSED = "document.activeElement.ariaLabel ?? document.activeElement.textContent"
"""The name of the element that has the focus."""

HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Makes a page believe that it is hidden, or shown again."""

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
RECORDS = [
    Visit(f"site-{n % 40}", f"page-{n % 7}", START + dt.timedelta(minutes=n), n) for n in range(400)
]
HIDDEN = ["", " lead", "\u202eevil", "line\nbreak"]
RECORDS += [Visit(site, "page-0", START + dt.timedelta(minutes=400), 1) for site in HIDDEN]
RECORDS += [Visit(EVIL, EVIL, START + dt.timedelta(minutes=400), 2**62 + 1)]


class Blob(NamedTuple):
    raw: bytes
    n: int


@sk.process(key="raw")
def blobs(record: Blob, kept: sk.ValueState[int]) -> None:
    kept.update(record.n)


def run(home: Path, records: list[Visit], epoch_size: int) -> None:
    job().run({"records": records}, checkpoint=home, epoch_size=epoch_size, drain=False)


class Site:
    """A served job that goes on when a test wants it."""

    def __init__(self, home: Path) -> None:
        self.home, self.records = home, list(RECORDS)
        run(home, self.records, epoch_size=50)

    def visit(self, site: str, cents: int) -> None:
        """Commit one more epoch."""
        at = START + dt.timedelta(minutes=len(self.records))
        self.records.append(Visit(site, "page-1", at, cents))
        run(self.home, self.records, epoch_size=1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site") / "checkpoint")


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    with server({"site": site.home}) as found:
        yield found


@pytest.fixture(scope="module")
def blob_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("blobs") / "checkpoint"
    built = sk.Job("blobs")
    built.source("records", Blob).process(blobs)
    records = [Blob(bytes.fromhex("1234"), 7), Blob(bytes.fromhex("12e4"), 8)]
    built.run({"records": records}, checkpoint=home, drain=False)
    with server({"blobs": home}) as found:
        yield found


class Note(NamedTuple):
    account: str
    note: str


@sk.process(key="account")
def notes(note: Note, last: sk.ValueState[str], counts: sk.ValueState[dict[str, int]]) -> None:
    last.update(note.note)
    counts.update({})


LONG = "account-" + "x" * 2000
NOTES = [Note("ann", ""), Note("  ", "   "), Note("bob", "\u200b"), Note(LONG, "ok")]


@pytest.fixture(scope="module")
def quiet_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job whose last epoch began 14 minutes ago."""
    home = tmp_path_factory.mktemp("notes") / "checkpoint"
    built = sk.Job("notes")
    built.source("records", Note).process(notes)
    began_us = time.time_ns() // 1000 - 14 * 60_000_000
    built.run(
        {"records": NOTES}, checkpoint=home, drain=False, epoch_size=2, clock=lambda: began_us
    )
    with server({"notes": home}) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


def shows(own: Page, text: str | re.Pattern[str]) -> None:
    expect(own.locator("main")).to_contain_text(text)


def key_of(value: Any) -> str:
    return quote(json.dumps(value))


PAGES = {
    "jobs": ("", "rows of state"),
    "job": ("site", "Records in, by operator"),
    "operator": ("site/visits", "times the mean"),
    "key": ("site/visits?key=" + key_of("site-7"), "Timers"),
    "keys": ("site/visits/pages", "site-7"),
    "live": ("site/visits/last?view=live", "live, epoch"),
    "growth": ("site/visits/log?view=growth", "Bytes"),
    "skew": ("site/visits/log?view=skew", "times the mean"),
    "read": ("site/visits/last?view=read", "read_parquet"),
    "sql": (
        "sql?job=site&sql=" + quote("select site, value from visits.total order by 2 desc limit 9"),
        "9 rows",
    ),
}

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


LOOKED_AT = list(product(PAGES, LOOKS) if SOAK else zip(PAGES, cycle(LOOKS), strict=False))
"""Each page in one of the looks, and in `make soak` in all of them."""


@pytest.mark.parametrize(("name", "look"), LOOKED_AT)
def test_each_page_is_accessible_and_fits_in_every_look(
    chromium: Browser, address: str, name: str, look: str
) -> None:
    path, text = PAGES[name]
    with page(chromium, **LOOKS[look]) as own:
        sizes: list[int] = []
        own.on("response", lambda each: sizes.append(len(each.body())))
        own.goto(f"{address}/-/{path}")
        assert sum(sizes) < 100_000, "the page, its style and its script"
        shows(own, text)
        found = Axe().run(own)
        assert found.violations_count == 0, found.generate_report()
        assert own.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    "path", ["", "notes", "notes/notes/last", "notes/notes?key=" + key_of("ann")]
)
def test_pages_say_for_how_long_a_job_has_had_no_epoch(
    chromium: Browser, quiet_address: str, path: str
) -> None:
    with page(chromium) as own:
        own.goto(f"{quiet_address}/-/{path}")
        shows(own, re.compile(r"no epoch for 1\d min|the last one, 1\d min \d+ s ago"))
        expect(own.locator(".status.good")).to_have_count(0)


def test_empty_and_blank_keys_and_values_are_seen(chromium: Browser, quiet_address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{quiet_address}/-/notes/notes/last")
        rows = own.locator("table.keys tbody tr")
        expect(rows).to_have_count(4)
        seen = {tuple(row.locator("th, td").all_inner_texts()) for row in rows.all()}
        assert {("ann", '""'), ('"  "', '"   "'), ("bob", '"\\u200b"')} < seen
        own.goto(f"{quiet_address}/-/notes/notes?key={key_of('ann')}")
        expect(own.get_by_label("Value").nth(1)).to_have_text("{}")
        own.goto(f"{quiet_address}/-/notes/notes?key={key_of('nobody')}")
        expect(own.get_by_text("nothing", exact=True)).to_have_count(2)


def test_a_long_key_leaves_room_for_the_values(chromium: Browser, quiet_address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{quiet_address}/-/notes/notes/last")
        expect(own.locator("table.keys tbody tr")).to_have_count(4)
        table, value = own.locator("table.keys"), own.locator("table.keys tbody td").first
        left, width = value.bounding_box(), table.bounding_box()
        assert left is not None
        assert width is not None
        assert left["x"] - width["x"] < width["width"] / 2


def test_labels_of_axes_and_of_the_plan_are_not_cut(chromium: Browser, quiet_address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{quiet_address}/-/notes")
        chart = own.get_by_role("figure").filter(has_text="Time of epochs")
        whole = chart.bounding_box()
        assert whole is not None
        labels = chart.locator(".plot text").all()
        assert labels
        for label in labels:
            place = label.bounding_box()
            assert place is not None
            assert whole["x"] < place["x"]
            assert place["x"] + place["width"] < whole["x"] + whole["width"]
        for box in own.locator(".plan .operator, .plan .source").all():
            text, around = box.locator("text").first, box.locator("rect")
            inner, outer = text.bounding_box(), around.bounding_box()
            assert inner is not None
            assert outer is not None
            assert inner["x"] + inner["width"] < outer["x"] + outer["width"]


def test_a_user_finds_a_key_by_clicks_and_the_address_shows_it_again(
    chromium: Browser, address: str
) -> None:
    with page(chromium) as own:
        own.goto(address)
        own.get_by_role("link", name="site").click()
        own.get_by_label("operator visits").click()
        own.get_by_label("site").fill("site-3")
        own.keyboard.press("Enter")
        shows(own, "key group")
        expect(own.get_by_role("article").first).to_contain_text('"page"')
        assert "key=%22site-3%22" in own.url
        own.reload()
        expect(own.get_by_role("heading", level=1)).to_have_text("site-3")
        expect(own.get_by_role("article").first).to_contain_text('"page"')


def test_a_key_changes_on_the_page_when_an_epoch_is_committed(
    chromium: Browser, address: str, site: Site
) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits?key={key_of('site-5')}")
        total = own.get_by_role("article").filter(
            has=own.get_by_role("heading", name="total", exact=True)
        )
        before = int(total.locator("pre").inner_text())
        site.visit("site-5", 1_000_000)
        expect(total.locator("pre")).to_have_text(str(before + 1_000_000))
        total.get_by_text("History").click()
        expect(total.get_by_role("row")).not_to_have_count(1)
        slider = own.get_by_role("slider")
        slider.focus()
        own.keyboard.press("ArrowLeft")
        expect(total.locator("pre")).to_have_text(str(before))
        assert "epoch=" in own.url
        own.get_by_role("link", name="Back to live").click()
        expect(total.locator("pre")).to_have_text(str(before + 1_000_000))


def test_the_live_view_shows_changes_of_keys_that_begin_with_a_text(
    chromium: Browser, address: str, site: Site
) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total?view=live")
        shows(own, "live, epoch")
        own.get_by_label("keys that begin with").fill("new-")
        own.get_by_role("button", name="Watch").click()
        shows(own, "live, epoch")
        site.visit("site-1", 5)
        site.visit("new-1", 7)
        row = own.get_by_role("row").filter(has_text="new-1")
        expect(row).to_contain_text("7")
        expect(own.get_by_role("row").filter(has_text="site-1")).to_have_count(0)
        own.get_by_role("button", name="Pause").click()
        shows(own, "paused")


def test_keys_are_shown_page_by_page_of_one_epoch(chromium: Browser, address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total")
        shows(own, "site-0")
        own.get_by_label("site", exact=True).fill("site-3")
        own.get_by_role("button", name="Start at key").click()
        shows(own, "from the beginning")
        expect(own.locator("table.keys tbody tr").first).to_contain_text("site-3")


def test_sql_runs_with_the_keyboard_and_its_address_shows_the_result(
    chromium: Browser, address: str
) -> None:
    sql = "select page, sum(value) as cents from aggregate_by_page.cents group by page"
    with page(chromium, expected_errors=("400",), accept_downloads=True) as own:
        own.goto(f"{address}/-/sql")
        own.get_by_label("query").fill(sql)
        own.keyboard.press("Control+Enter")
        shows(own, "8 rows")
        expect(own.get_by_role("img", name=re.compile("page-1"))).to_be_visible()
        with own.expect_download() as saved:
            own.get_by_role("link", name="CSV").click()
        assert Path(saved.value.path()).read_text().startswith('"page","cents"')
        own.reload()
        shows(own, "8 rows")
        own.get_by_role("button", name="Explain").click()
        shows(own, "Hash Group By")
        own.get_by_label("query").fill("select * from nothing")
        own.get_by_role("button", name="Run", exact=True).click()
        expect(own.get_by_role("alert")).to_contain_text("Tables are states")


def test_text_of_users_is_never_markup_and_large_integers_are_exact(
    chromium: Browser, address: str
) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits?key={key_of(EVIL)}")
        expect(own.get_by_role("heading", level=1)).to_have_text(EVIL)
        shows(own, str(2**62 + 1))
        own.goto(f"{address}/-/sql?job=site&sql={quote('select map_key, value from visits.pages')}")
        shows(own, EVIL)
        assert own.locator("main img").count() == 0
        assert own.title() != "1"


def test_a_server_with_tokens_asks_for_one_and_shows_what_it_may_read(
    chromium: Browser, site: Site, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    tokens = tmp_path / "tokens.json"
    reads = {"name": "page", "sha256": digest, "read": ["site/visits/total"]}
    tokens.write_text(json.dumps({"tokens": [reads]}))
    with (
        server({"site": site.home}, tokens=tokens) as found,
        page(chromium, expected_errors=("401",)) as own,
    ):
        own.goto(f"{found}/-/site")
        field = own.get_by_role("textbox", name="token")
        field.fill("wrong")
        own.keyboard.press("Enter")
        expect(own.get_by_role("alert")).to_contain_text("does not know")
        field.fill("secret")
        own.keyboard.press("Enter")
        shows(own, "total")  # the page that was asked for
        expect(own.locator("main")).not_to_contain_text("pages")
        assert own.evaluate("document.cookie") == ""
        assert own.evaluate("fetch('/jobs').then((answer) => answer.status)") == 401
        own.reload()
        shows(own, "total")
        own.get_by_role("button", name="Sign out").click()
        expect(own.get_by_role("heading", name="This server needs a token")).to_be_visible()


def test_typed_text_focus_selection_and_scroll_stay_when_an_epoch_is_committed(
    chromium: Browser, address: str, site: Site
) -> None:
    state = """() => {
        const { name, value, selectionStart, selectionEnd } = document.activeElement;
        return [name, value, selectionStart, selectionEnd, scrollY];
    }"""
    with page(chromium, viewport={"width": 900, "height": 400}) as own:
        own.goto(f"{address}/-/site/visits?key={key_of('site-6')}")
        own.get_by_label("site").fill("half typed")
        own.evaluate("document.activeElement.setSelectionRange(2, 6)")
        own.evaluate("scrollTo(0, 150)")
        before, value = own.evaluate(state), own.locator("#card-total pre")
        total = int(value.inner_text())
        site.visit("site-6", 7)
        expect(value).to_have_text(str(total + 7))
        assert own.evaluate(state) == before == ["field", "half typed", 2, 6, 150]


@pytest.mark.parametrize("path", ["", "site", "site/visits", "site/visits/total", "sql?job=site"])
def test_pages_work_without_javascript(chromium: Browser, address: str, path: str) -> None:
    with page(chromium, java_script_enabled=False) as own:
        own.goto(f"{address}/-/{path}")
        shows(own, re.compile("site|page"))
        if path == "site/visits":
            own.get_by_label("site").fill("site-3")
            own.get_by_role("button", name="Find key").click()
            own.get_by_role("link", name="History").first.click()
            expect(own.get_by_text("since epoch")).to_be_visible()
        if path == "sql?job=site":
            own.get_by_label("query").fill("select 1 as one")
            own.get_by_role("button", name="Run").click()
            shows(own, "1 row,")


def test_a_chart_shows_the_values_under_the_pointer(chromium: Browser, address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site")
        chart = own.get_by_role("figure").filter(has_text="Watermark")
        last = chart.locator(".legend").inner_text()
        area = chart.locator(".area").first
        area.hover(position={"x": 1, "y": 60})
        expect(chart.locator(".legend")).not_to_have_text(last)
        own.get_by_role("heading", level=1).hover()
        expect(chart.locator(".legend")).to_have_text(last, use_inner_text=True)


def test_the_theme_is_chosen_with_a_button_and_kept(chromium: Browser, address: str) -> None:
    with page(chromium, color_scheme="light") as own:
        own.goto(address)
        light = own.evaluate("getComputedStyle(document.body).backgroundColor")
        for _ in range(2):
            own.get_by_role("button", name="Theme").click()
        expect(own.get_by_role("button", name="Theme: dark")).to_be_visible()
        own.reload()
        expect(own.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert own.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_all_is_reached_with_the_keyboard(chromium: Browser, address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site")
        shows(own, "Operators and states")
        own.keyboard.press("Tab")
        own.keyboard.press("Enter")  # the link that skips the frame
        assert own.evaluate("document.activeElement.id") == "main"
        reached: list[str] = []
        for _ in range(40):
            own.keyboard.press("Tab")
            reached.append(own.evaluate(FOCUSED))
        assert "operator visits" in reached
        assert "pages" in reached


def test_a_server_that_ends_is_reported_and_the_page_goes_on_when_it_is_back(
    chromium: Browser, site: Site
) -> None:
    with page(chromium, expected_errors=("ERR_", "Failed to load")) as own:
        with server({"site": site.home}) as found:
            own.goto(f"{found}/-/site")
            shows(own, "Operators and states")
        expect(own.get_by_role("alert")).to_contain_text("cannot be reached")
        with server({"site": site.home}, port=int(found.rpartition(":")[2])):
            expect(own.get_by_role("alert")).to_have_count(0)


def test_keys_that_cannot_be_seen_have_quotes(chromium: Browser, address: str) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total")
        keys = own.locator("table.keys tbody th")
        expect(keys.first).to_have_text('""')
        shown = keys.all_inner_texts()
        assert '" lead"' in shown
        own.goto(f"{address}/-/site/visits/total?start={key_of('site-39')}")
        shows(own, "from the beginning")
        assert '"\\u202eevil"' in keys.all_inner_texts()
        own.goto(f"{address}/-/site/visits?key={key_of('')}")
        expect(own.get_by_role("heading", level=1)).to_have_text('""')
        assert Axe().run(own).violations_count == 0


def test_keys_of_bytes_are_found_as_hex(chromium: Browser, blob_address: str) -> None:
    with page(chromium) as own:
        for text, value in (("1234", "7"), ("12e4", "8")):
            own.goto(f"{blob_address}/-/blobs/blobs")
            own.get_by_label("raw").fill(text)
            own.get_by_role("button", name="Find key").click()
            expect(own.get_by_role("article").locator("pre")).to_have_text(value)


def test_keys_say_which_epoch_they_are_of(chromium: Browser, address: str, site: Site) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total?start={key_of('site-8')}")
        shows(own, re.compile("live|the last one"))
        epoch = own.locator("output").inner_text()
        site.visit("site-8", 1)
        shows(own, "1 newer")
        assert own.locator("output").inner_text() == epoch
        own.get_by_role("link", name="Read again").click()
        expect(own.locator("output")).to_have_text(str(int(epoch) + 1))


def test_further_keys_are_of_the_epoch_of_the_first_ones(
    chromium: Browser, address: str, site: Site
) -> None:
    for n in range(60):
        site.records.append(Visit(f"more-{n}", "page-1", START + dt.timedelta(hours=7), 1))
    site.visit("more-60", 1)
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total")
        rows = own.locator("table.keys tbody tr")
        expect(rows).to_have_count(50)
        epoch = own.locator("output").inner_text()
        site.visit("site-3", 1)
        shows(own, "1 newer")
        own.get_by_role("link", name="Show more").click()
        shows(own, f"after epoch {epoch}, from the beginning")
        own.get_by_label("site", exact=True).fill("site-3")
        own.get_by_role("button", name="Start at key").click()
        expect(rows.first).to_contain_text("site-3")
        shows(own, f"after epoch {int(epoch) + 1}, from")


def test_times_are_utc_whatever_the_zone_of_the_browser(chromium: Browser, address: str) -> None:
    sql = "select timestamp '2026-01-02 12:00:00' + interval (n) hour as t, n from range(3) r(n)"
    with page(chromium, timezone_id="America/New_York") as own:
        own.goto(f"{address}/-/sql?job=site&sql={quote(sql)}")
        expect(own.locator(".legend")).to_contain_text("2026-01-02 14:00:00")


def test_the_filter_of_the_live_view_is_in_its_address(
    chromium: Browser, address: str, site: Site
) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total?view=live&prefix=other-")
        expect(own.get_by_label("keys that begin with")).to_have_value("other-")
        shows(own, "live, epoch")
        site.visit("other-1", 5)
        row = own.get_by_role("row").filter(has_text="other-1")
        expect(row).to_have_count(1)
        own.get_by_label("keys that begin with").fill("zzz")
        own.get_by_role("button", name="Watch").click()
        expect(row).to_have_count(0)
        own.go_back()
        expect(own.get_by_label("keys that begin with")).to_have_value("other-")


def test_a_filter_that_is_being_typed_stays_when_an_epoch_comes(
    chromium: Browser, address: str, site: Site
) -> None:
    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total?view=live")
        shows(own, "live, epoch")
        field = own.get_by_label("keys that begin with")
        field.fill("zz")
        site.visit("typed-1", 5)
        expect(own.get_by_role("row").filter(has_text="typed-1")).to_have_count(1)
        expect(field).to_have_value("zz")


def test_a_hidden_page_keeps_no_connection(chromium: Browser, address: str) -> None:
    def watchers() -> float:
        (line,) = re.findall(
            r"^statekit_watchers (\S+)$", httpx.get(f"{address}/metrics").text, re.M
        )
        return float(line)

    with page(chromium) as own:
        own.goto(f"{address}/-/site/visits/total?view=live")
        shows(own, "live, epoch")
        for is_hidden, expected in ((True, 0), (False, 1)):
            own.evaluate(HIDE, is_hidden)
            for _ in range(100):
                if watchers() == expected:
                    break
                own.wait_for_timeout(100)
            assert watchers() == expected


def test_results_of_sql_go_with_their_job_and_back_shows_the_query_before(
    chromium: Browser, site: Site
) -> None:
    with server({"one": site.home, "two": site.home}) as found, page(chromium) as own:
        requests: list[str] = []
        own.on("request", lambda each: requests.append(each.url) if "sql=" in each.url else None)
        own.goto(f"{found}/-/sql?job=one&sql={quote('select 1 as a')}")
        shows(own, "1 row")
        own.get_by_label("query").fill("select 2 as b from range(2)")
        own.keyboard.press("Control+Enter")
        shows(own, "2 rows")
        own.go_back()
        shows(own, "1 row,")
        own.get_by_label("job").select_option("two")
        expect(own.locator(".sql-result")).to_have_text("")
        assert len(requests) == 3


def test_many_jobs_do_not_take_all_connections(chromium: Browser, site: Site) -> None:
    names = [f"job-{n}" for n in range(8)]
    with server(dict.fromkeys(names, site.home)) as found, page(chromium) as own:
        own.goto(found)
        expect(own.get_by_role("listitem").filter(has_text="rows of state")).to_have_count(8)
        expect(own.get_by_role("main").get_by_text("–")).to_have_count(0)
        began = time.monotonic()
        own.goto(f"{found}/-/job-7/visits?key={key_of('site-3')}")
        shows(own, "key group")
        assert time.monotonic() - began < 10
