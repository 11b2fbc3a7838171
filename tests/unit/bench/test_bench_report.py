"""The report is made of what was measured, and of nothing else."""

from __future__ import annotations

import datetime as dt
import html.parser
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
from matplotlib.image import imread
from PIL import Image

from tests.bench.__main__ import BENCHMARKS, taken
from tests.bench.measured_code import changed_since, code_of, digest
from tests.bench.pages import html as html_page
from tests.bench.pages import markdown, publish
from tests.bench.plots import PLOTS, fingerprint
from tests.bench.readme import BEGIN, END, SHOWN, with_table
from tests.bench.report import NOT_DURABLE, SPARK_DURABLE, Arm, Row, faster, statekit, times_as_fast
from tests.bench.results import Measured, Results
from tests.support.places import DOCS

PLOT_FOLDER = DOCS / "benchmarks"
DAY = dt.date(2026, 1, 2)


def compared(what: str, ours_s: float, theirs_s: float, events: int) -> Row:
    ours, theirs = statekit(ours_s, events), Arm("Spark | SQL", theirs_s, SPARK_DURABLE, events)
    return Row(what, faster(ours, theirs), "at least 1", (ours, theirs))


SAMPLE = {
    "task": [Row("one shard <alone>", "1,000 events/s", "", (statekit(2.0, 2_000),))],
    "commits": [Row("words alone", "1.1 times", "under 1.3")],
    "ttl": [
        Row(
            "with and without",
            "1.25 times",
            "",
            (statekit(0.5, 100, "statekit, TTL"), statekit(0.4, 100, "statekit, no TTL")),
        )
    ],
    "spark-100k": [compared("ten times as fast", 0.5, 5.0, 1_000)],
    "nexmark-q3": [compared("half as fast", 4.0, 2.0, 1_000)],
}

DICT = Arm("a dict", 1.0, NOT_DURABLE, 1_000)
OTHER = Arm("Other", 4.0, "a snapshot every 10 s", 1_000, written=3_000_000, memory=20_000_000)
WORKS_OTHERWISE = "It puts out one result per key."
MORE = {
    "task": [
        Row("dict", "0.5", "", (statekit(2.0, 1_000), Arm("a dict", 1.0, NOT_DURABLE, 1_000)))
    ],
    "peer-bytewax": [
        Row("one core", "2 times as many", "", (statekit(2.0, 1_000), OTHER), note=WORKS_OTHERWISE)
    ],
    "peer-quix": [Row("one core", "no number: it is not here", "", without="it is not here")],
    "keys": [
        Row(
            f"{keys:,} keys",
            "100",
            "",
            (statekit(keys / 1e4, 100)._replace(memory=10**8),),
            keys=keys,
        )
        for keys in (10_000, 100_000)
    ],
    "spark-1": [
        Row(
            "one event",
            "2 times as fast",
            "",
            (
                statekit(0.1, 1)._replace(p50=0.1, p99=0.3),
                Arm("Spark", 0.2, SPARK_DURABLE, 1, p50=0.2, p99=0.25),
            ),
        )
    ],
}
"""Rows of all other kinds."""


def sample(of: Mapping[str, list[Row]] = SAMPLE) -> Results:
    results = Results()
    for name, rows in of.items():
        measured = [Measured.of(name, row, DAY) for row in rows]
        results = results.with_rows(name, measured, list(BENCHMARKS))
    return results


class Page(html.parser.HTMLParser):
    """The cells of a page's tables, and its images; fails where tags are not closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.images: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        elif tag != "meta":
            self._open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._open:
            self.cells[-1] += data


def test_the_stored_pages_and_plots_are_made_of_the_stored_results() -> None:
    stored = Results.read(PLOT_FOLDER)
    assert (PLOT_FOLDER / "README.md").read_text() == markdown(stored)
    assert (PLOT_FOLDER / "index.html").read_text() == html_page(stored)
    for name in PLOTS:
        if name in markdown(stored):
            with Image.open(PLOT_FOLDER / name) as plot:
                assert plot.info["Source"] == fingerprint(stored), name
        else:
            assert not (PLOT_FOLDER / name).exists()


def test_published_results_can_be_read_and_published_again(tmp_path: Path) -> None:
    publish(sample(), tmp_path / "one")
    read = Results.read(tmp_path / "one")
    assert read == sample()
    publish(read, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_row_names_its_reference_and_its_durability(tmp_path: Path) -> None:
    publish(sample(), tmp_path)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    fast = next(row for row in rows if row["benchmark"] == "spark-100k")
    assert fast["ratio"] == 10
    assert (fast["ours"]["seconds"], fast["against"]["seconds"]) == (0.5, 5.0)
    assert (fast["ours"]["events_per_second"], fast["against"]["events_per_second"]) == (2000, 200)
    assert fast["against"]["durable"] == SPARK_DURABLE
    assert (fast["on"], fast["cores"] >= 1) == ("2026-01-02", True)


def test_interleaved_runs_are_compared_in_pairs() -> None:
    ours = statekit(2.0)._replace(turns=(1.0, 2.0, 9.0))  # as the machine slows down
    theirs = Arm("Other", 30.0, NOT_DURABLE, turns=(10.0, 30.0, 90.0))
    assert times_as_fast(ours, theirs) == Row("", "", "", (ours, theirs)).times_as_fast == 10
    assert faster(ours, theirs) == "10.0 times as fast (2.00 s against 30.00 s)"
    assert times_as_fast(statekit(2.0), theirs) == 15


def test_both_pages_have_all_rows_and_the_plots() -> None:
    text, page = markdown(sample(SAMPLE | MORE)), Page(html_page(sample(SAMPLE | MORE)))
    for row in sample(SAMPLE | MORE).rows:
        assert row.measured in text
        assert {row.measured, row.result} <= set(page.cells)
    assert "| 0.5 | Spark \\| SQL | 5 | 10 | 2,000 | 200 |" in text
    assert page.images == list(PLOTS)
    for name in PLOTS:
        assert f"]({name})" in text


def test_plots_are_there_for_rows_that_have_something_to_show(tmp_path: Path) -> None:
    publish(sample(SAMPLE | MORE), tmp_path)
    for name in PLOTS:
        drawn = imread(tmp_path / name)[:, :, :3]
        assert 0.005 < (drawn < 0.5).mean() < 0.5, "neither empty nor black"
        assert (drawn.max(axis=2) - drawn.min(axis=2)).max() < 0.01, "greys alone"
    publish(sample(), tmp_path)
    assert not [name for name in ("peers.png", "keys.png") if (tmp_path / name).exists()]
    publish(Results(), tmp_path)
    assert not [name for name in PLOTS if (tmp_path / name).exists()]


def test_a_reason_is_shown_beside_the_number_or_in_its_place() -> None:
    lines = markdown(sample(MORE)).splitlines()
    assert f"| one core | 2 | Other | 4 | 2 | 500 | 250 | {WORKS_OTHERWISE} |" in lines
    assert "| one core | – | – | – | – | – | – | it is not here |" in lines


def test_sources_and_sinks_have_a_table_of_their_own_with_commands() -> None:
    arms = (statekit(4.0, 1_000), OTHER)
    rows = {
        "task": SAMPLE["task"],
        "kafka": [
            Row("from Kafka", "1.0 times", "", arms, note=WORKS_OTHERWISE),
            Row("from Kafka, other", "no number: it is not here", "", without="it is not here"),
        ],
    }
    _, _, behind = markdown(sample(rows)).partition("## Sources and sinks\n")
    table, _, _ = behind.partition("\n## ")
    command = "python -m tests.bench kafka"
    assert f"| from Kafka | 1.0 times | Other | 1 | {command} | {WORKS_OTHERWISE} |" in table
    assert f"| from Kafka, other | – | – | – | {command} | it is not here |" in table
    assert "## Side by side" not in markdown(sample(rows))


def test_latency_bytes_and_memory_of_each_side_are_shown() -> None:
    lines = markdown(sample(MORE)).splitlines()
    assert "| one event | statekit | 100 | 300 | – | – |" in lines
    assert "| one event | Spark | 200 | 250 | – | – |" in lines
    assert "| one core | Other | – | – | 3 | 20 |" in lines


def test_a_benchmark_that_runs_again_replaces_its_own_rows_alone(tmp_path: Path) -> None:
    for name, rows in SAMPLE.items():
        publish(taken(name, rows, tmp_path, DAY), tmp_path)
    anew = [compared("anew", 1.0, 2.0, 10)]
    publish(taken("task", anew, tmp_path, dt.date(2026, 1, 3)), tmp_path)
    found = [(row.benchmark, row.measured, row.on.day) for row in Results.read(tmp_path).rows]
    assert found == [
        ("task", "anew", 3),
        ("commits", "words alone", 2),
        ("ttl", "with and without", 2),
        ("spark-100k", "ten times as fast", 2),
        ("nexmark-q3", "half as fast", 2),
    ]
    assert "2026-01-03" in (tmp_path / "README.md").read_text()


# ------------------------------------------------------------------------ code that has changed


def package(directory: Path, text: str) -> Path:
    (directory / "state").mkdir(parents=True)
    (directory / "state" / "values.py").write_text(text)
    return directory


def test_comments_docstrings_and_layout_are_no_change_of_code(tmp_path: Path) -> None:
    one = package(tmp_path / "one", "def f(x):\n    return x + 1\n")
    same = package(
        tmp_path / "same", '"""Values."""\n\ndef f( x ):\n    "Adds."\n    # one\n    return x+1\n'
    )
    other = package(tmp_path / "other", "def f(x):\n    return x + 2\n")
    assert digest(one, "state") == digest(same, "state") != digest(other, "state")


def test_a_benchmark_measures_folders_of_the_package_that_exist() -> None:
    for name in BENCHMARKS:
        code = code_of(name)
        assert changed_since(code) == ()
        assert len(set(code.values())) == len(code), "each folder has code of its own"
    assert "server" in code_of("serve-get")
    assert "spark" not in code_of("task")


def test_a_row_whose_code_has_changed_is_marked_and_leaves_the_readme() -> None:
    shown = SHOWN[0]
    rows = {shown.benchmark: [compared(f"{shown.measured} and more", 1.0, 5.0, 10)]}
    fresh = sample(rows).marked()
    readme = f"# Title\n{BEGIN}old\n{END}\nend\n"
    assert f"| {shown.label} | 5 times as fast |" in with_table(readme, fresh)
    (row,) = fresh.rows
    older = msgspec.structs.replace(row, code={**row.code, "spark": "something else"})
    stale = Results((older,)).marked()
    assert "| spark |" in markdown(stale)
    assert shown.label not in with_table(readme, stale)
    assert with_table(readme, stale).startswith("# Title\n")
    assert with_table(readme, stale).endswith(f"{END}\nend\n")


def test_a_row_of_which_nobody_knows_the_code_is_marked() -> None:
    (row, *_) = sample().rows
    stored = msgspec.json.decode(msgspec.json.encode(row))
    del stored["code"], stored["changed"]
    older = msgspec.convert(stored, Measured)
    assert Results((older,)).marked().rows[0].changed == ("unknown",)


def test_the_table_of_the_readme_is_made_of_the_stored_results() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    assert with_table(readme, Results.read(PLOT_FOLDER)) == readme
