"""The documents are true: examples run, and commands, files and links exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from deltalake import DeltaTable

from statekit.cli.app import app
from tests.support.command_line import statekit
from tests.support.kafka_broker import KafkaBroker
from tests.support.places import DOCS, ROOT
from tests.support.postgres import PostgresSchema

README = (ROOT / "README.md").read_text()
_RUN = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
_RUN_ON_SPARK = re.compile(r"<!-- run on spark -->\n```python\n(.*?)```", re.DOTALL)
_NAMED = re.compile(r"`((?:tests|docs|statekit)/[\w/.]+)(?:::(\w+))?`")
_PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
_LINK = re.compile(r"\]\(([\w/.-]*)(?:#([\w-]+))?\)")
_RECORDS = re.compile(r"<!-- records -->\n```sh\n(.*?)```", re.DOTALL)
EXAMPLES = _RUN.findall(README)
ON_SPARK = DOCS / "guide" / "from-spark.md"
TWO_SCREENS = 100
"""Lines."""
LONGEST_PAGE = 2_000
"""Words: of a page that teaches."""
LONGEST_REFERENCE = 3_000
"""Words: of a page of the reference or the internals, where a reader looks something up."""
LONGEST_CHANGELOG = 1_000
"""Words: five minutes."""
FORMAT = DOCS / "reference" / "format.md"
FOLDERS = (
    *("start", "how-to", "guide", "operate", "coming-from"),
    *("explain", "reference", "internals"),
)
PAGES = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if _RUN.search(page.read_text()) and page != ON_SPARK]


def run(page: str, examples: list[str], **given: Any) -> None:
    """A module's worth of code, run as a user would paste it."""
    names: dict[str, Any] = {"__name__": page.lower(), **given}
    for example in examples:
        exec(compile(example, page, "exec", dont_inherit=True), names)


@pytest.mark.spark
def test_every_example_of_the_readme_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (records,) = _RECORDS.findall(README)
    subprocess.run(["bash", "-ec", records], check=True)
    first, on_spark, tested = EXAMPLES
    run("README.md", [first])
    assert DeltaTable("spent").to_pyarrow_table().to_pylist() == [
        {"customer": "ann", "cents": 2500}
    ]
    more = '{"customer": "ann", "item": "mug", "cents": 700}'
    (tmp_path / "orders" / "2.jsonl").write_text(more)
    run("README.md", [first.replace("job.run(", "# job.run("), on_spark, tested])
    assert DeltaTable("spent").to_pyarrow_table().to_pylist() == [
        {"customer": "ann", "cents": 3200}
    ]


@pytest.mark.spark
def test_the_examples_of_the_guide_from_spark_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(ON_SPARK.name, _RUN.findall(ON_SPARK.read_text()))


@pytest.mark.spark
def test_the_spark_examples_of_a_page_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "guide" / "tables.md").read_text()
    first, on_spark = _RUN.search(page), _RUN_ON_SPARK.search(page)
    assert first is not None
    assert on_spark is not None
    run("tables.md", [first[1], on_spark[1]], spark=spark)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.name))
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page.name, _RUN.findall(page.read_text()))


def test_the_first_example_has_about_twenty_lines() -> None:
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= 22


def test_every_command_of_the_guide_exists() -> None:
    blocks = (DOCS / "start" / "guide.md").read_text().split("```")[1::2]
    commands = {name for block in blocks for name in re.findall(r"^statekit (\w+)", block, re.M)}
    assert commands
    for command in commands:
        assert statekit(command, "--help").returncode == 0


def test_every_command_is_in_a_document() -> None:
    text = "".join(page.read_text() for page in [ROOT / "README.md", *PAGES])
    commands = vars(typer.main.get_command(app))["commands"]
    assert [n for n in commands if f"statekit {n}" not in text and f"make {n}" not in text] == []


def test_every_file_that_the_documents_name_exists() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for named, test in _NAMED.findall(page.read_text()):
            assert (ROOT / named).exists(), f"{page.name} names {named}"
            assert not test or f"def {test}(" in (ROOT / named).read_text(), f"{page.name}: {test}"
        for link, place in _LINK.findall(page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not place or place in _places(target), f"{page.name} links to {link}#{place}"


def test_every_page_that_code_names_exists() -> None:
    for source in [*(ROOT / "statekit").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for named in _PAGE.findall(source.read_text()):
            assert (ROOT / named).exists(), f"{source.relative_to(ROOT)} names {named}"


def test_the_index_names_each_page_once() -> None:
    listed = re.findall(r"^- \[.*?\]\(([\w/-]+\.md)\):", (DOCS / "README.md").read_text(), re.M)
    own = [link for link in listed if not link.endswith("/README.md")]
    assert sorted(own) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
    assert sorted(DOCS.glob("*.md")) == [DOCS / "README.md"]


def test_every_page_longer_than_two_screens_has_a_table_of_contents() -> None:
    for page in PAGES:
        text = page.read_text()
        if text.count("\n") > TWO_SCREENS:
            assert "\nContents: [" in text, page.name


@pytest.mark.parametrize("page", [p for p in PAGES if p != FORMAT], ids=lambda page: str(page.name))
def test_a_page_that_teaches_has_at_most_two_thousand_words(page: Path) -> None:
    looked_up = page.parent.name in ("reference", "internals")
    longest = LONGEST_REFERENCE if looked_up else LONGEST_PAGE
    assert len(page.read_text().split()) <= longest, "divide it by what a reader wants to do"


def test_the_changelog_is_read_in_five_minutes() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().split()) <= LONGEST_CHANGELOG, "merge lines"


def test_every_decision_is_listed_with_its_title() -> None:
    decisions = DOCS / "decisions"
    listed = (decisions / "README.md").read_text()
    for page in sorted(decisions.glob("0*.md")):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert f"| {number} | [{title}]({page.name}) |" in listed


def _places(page: Path) -> set[str]:
    """What the headings of a page can be linked to as."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_job_of_the_readme_takes_records_from_kafka_to_postgresql(
    tmp_path: Path, kafka: KafkaBroker, topic: str, postgres: PostgresSchema
) -> None:
    (example,) = re.findall(
        r"<!-- run with kafka and postgresql -->\n```python\n(.*?)```",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )
    for stands, given in {
        '"localhost:9092", "orders"': f'"{kafka.servers}", "{topic}"',
        "postgresql://localhost/shop": postgres.url,
        '"unreadable")': f'"{tmp_path / "unreadable"}")',
        '"unreadable"))': f'"{tmp_path / "unreadable"}"))',
        'checkpoint="checkpoint", follow=True': f'checkpoint="{tmp_path / "checkpoint"}"',
    }.items():
        example = example.replace(stands, given)
    kafka.create_topic(topic)
    orders = [("ada", 500), ("bob", 300), ("ada", 200)]
    values = [json.dumps({"customer": of, "cents": cents}) for of, cents in orders]
    kafka.produce(topic, [*values[:2], "no JSON", values[2]])
    run("README.md", [example])
    found = postgres.rows("SELECT customer, orders, cents FROM accounts ORDER BY customer")
    assert found == [("ada", 2, 700), ("bob", 1, 300)]
    (bad,) = (tmp_path / "unreadable").glob("*.jsonl")
    assert bytes.fromhex(json.loads(bad.read_text())["value"]) == b"no JSON"
