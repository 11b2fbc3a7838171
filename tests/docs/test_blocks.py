"""Each block of Python on a page is run by a test. Those that need a cluster or a service that is
not there have the names, options and types of the code.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_readme import PAGES
from tests.support.mypy_reports import mypy_reports
from tests.support.places import DOCS, TESTS

_BLOCK = re.compile(
    r"(?:^ *<!-- ([^>]*?) -->\n)?^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)

DOCTESTS = [
    DOCS / "guide" / f"{name}.md"
    for name in ("errors", "evolution", "testing-faults", "testing-state-machines", "ttl")
]

RUN_BY = {
    "guide/inputs.md": "docs/test_inputs_page.py",
    "guide/mirrors.md": "docs/test_mirrors_page.py",
    "guide/outputs.md": "docs/test_outputs_page.py",
    "guide/replay.md": "docs/test_testing_page.py",
    "guide/running.md": "docs/test_running_pages.py",
    "guide/services.md": "docs/test_services_page.py",
    "guide/sinks.md": "docs/test_running_pages.py",
    "guide/sinks-delta.md": "docs/test_lake_pages.py",
    "guide/sinks-iceberg.md": "docs/test_lake_pages.py",
    "guide/sinks-kafka.md": "docs/test_kafka_page.py",
    "guide/sinks-postgres.md": "docs/test_postgres_page.py",
    "guide/sources.md": "docs/test_sources_pages.py",
    "guide/sources-files.md": "docs/test_sources_pages.py",
    "guide/sources-kafka.md": "docs/test_kafka_source_page.py",
    "guide/sources-postgres.md": "docs/test_postgres_source_page.py",
    "guide/testing.md": "docs/test_testing_page.py",
    "guide/testing-checks.md": "docs/test_checks_page.py",
    "guide/testing-mistakes.md": "docs/test_checks_page.py",
    "guide/testing-parts.md": "docs/test_parts_page.py",
    "operate/transform.md": "docs/test_transform_page.py",
    "reference/format.md": "docs/test_format.py",
    "start/tutorial.md": "docs/test_tutorial.py",
}
"""Pages all of whose blocks are run by a test of their own."""


_IMPORTS = """import statekit
import statekit.query
import statekit as sk
from pathlib import Path
from typing import Annotated, Any
"""

_SHOP = """import statekit as sk
class Order(dict[str, int]): ...
total: sk.Process[Order, ..., int]
"""
"""The module of which pages say that it has a job."""


class Block(NamedTuple):
    """A block of Python.

    Parameters:
        note: the comment before it; empty if there is none.
    """

    page: Path
    note: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = _BLOCK.findall(page.read_text())
    return [
        Block(page, note, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE))
        for note, indent, code in found
    ]


WITHOUT_TEST = [
    block
    for page in PAGES
    if page.relative_to(DOCS).as_posix() not in RUN_BY and page not in DOCTESTS
    for block in blocks_of(page)
    if not block.note.startswith("run")
]
FRAGMENTS = [block for block in WITHOUT_TEST if block.note.startswith("with ")]


def test_each_block_is_run_or_has_the_types_of_the_code() -> None:
    left = [block for block in WITHOUT_TEST if block.note != "of another system"]
    assert [(block.page.name, block.code) for block in left if block not in FRAGMENTS] == []
    for page, test in RUN_BY.items():
        assert blocks_of(DOCS / page), page
        assert Path(page).stem in (TESTS / test).read_text()


@pytest.mark.parametrize("page", DOCTESTS, ids=lambda page: str(page.name))
def test_the_examples_of_a_page_have_the_results_on_the_page(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 5
    assert not found.failed


def test_fragments_have_names_options_and_types_of_the_code(tmp_path: Path) -> None:
    files = {}
    (tmp_path / "shop.py").write_text(_SHOP)
    for number, block in enumerate(FRAGMENTS):
        given = block.note.removeprefix("with ").replace("; ", "\n")
        path = tmp_path / f"fragment_{number}.py"
        path.write_text(f"{_IMPORTS}{given}\n{block.code}".replace("…", "..."))
        files[path.name] = block, path
    reports = mypy_reports(
        [tmp_path / "shop.py", *(path for _, path in files.values())], tmp_path, strict=False
    )
    assert {files[name][0].page.name: said for name, said in reports.items()} == {}
    assert len(files) > 15
