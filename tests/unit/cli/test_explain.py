"""`statekit explain` and `statekit draw` show the plan of a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import statekit as sk
from statekit.job.diagram import mermaid_of, picture_of_plan
from tests.support import document_jobs as documents
from tests.support.document_jobs import DocumentJob
from tests.support.invoked import invoked
from tests.support.shop_command_job import Order, job

SVG = "{http://www.w3.org/2000/svg}"
JOB = "tests.support.shop_command_job:job"


def test_a_job_or_its_document_is_explained(tmp_path: Path) -> None:
    document = tmp_path / "job.json"
    document.write_text(job.to_json())
    for name in (JOB, str(document)):
        assert invoked("explain", name).stdout == f"{job.explain()}\n"


def test_a_job_is_drawn() -> None:
    assert invoked("draw", JOB).stdout.splitlines() == [
        "flowchart LR",
        '    s0(["orders"])',
        '    o0["total<br/>by customer<br/>sum: value"]',
        '    k0[/"totals"/]',
        "    s0 --> o0",
        "    o0 --> k0",
    ]


def test_a_job_is_drawn_as_a_picture() -> None:
    svg = invoked("draw", JOB, "--svg").stdout
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert texts == ["orders", "total", "by customer", "sum: value", "totals"]
    assert invoked("draw", JOB, "--mermaid").stdout == invoked("draw", JOB).stdout


@pytest.mark.parametrize("seed", range(30))
def test_no_line_of_a_picture_of_a_random_job_crosses_a_box(seed: int) -> None:
    picture = picture_of_plan(DocumentJob(seed).job.plan)
    for one, other in itertools.combinations(picture.nodes, 2):
        beside = one.x + one.width < other.x or other.x + other.width < one.x
        below = one.y + one.height < other.y or other.y + other.height < one.y
        assert beside or below, (one.lines, other.lines)
    for curve in picture.curves:
        for x, y in straight_points(curve.path):
            for node in picture.nodes:
                is_in = node.x < x < node.x + node.width and node.y < y < node.y + node.height
                assert not is_in, (curve.stream, node.lines)


def straight_points(path: str) -> Iterator[tuple[float, float]]:
    """Points of the straight parts of a line, within the layers of boxes."""
    x = y = 0.0
    for command, numbers in re.findall(r"([MHC])([-\d. ]+)", path):
        values = [float(number) for number in numbers.split()]
        if command == "H":
            steps = (x + (values[0] - x) * part / 8 for part in range(1, 8))
            yield from ((step, y) for step in steps if abs(values[0] - x) > 1)
            x = values[0]
        else:
            x, y = values[-2:]


@pytest.mark.parametrize("seed", range(30))
def test_each_arrow_of_a_random_job_is_between_nodes(seed: int) -> None:
    made = DocumentJob(seed).job
    lines = [line.strip() for line in mermaid_of(made.plan).splitlines()[1:]]
    arrows = [line.split() for line in lines if "->" in line]
    nodes = {re.split(r"[(\[{]", line)[0] for line in lines if "->" not in line}
    assert all({arrow[0], arrow[-1]} <= nodes for arrow in arrows)
    parts = [*made.plan.sources, *made.plan.transforms, *made.plan.operators, *made.plan.sinks]
    assert len(nodes) == len(parts)
    assert {arrow[-1] for arrow in arrows} | {
        f"s{n}" for n in range(len(made.plan.sources))
    } == nodes


def test_late_records_and_broadcasts_are_dotted() -> None:
    made = sk.Job("shop")
    orders = made.source("orders", documents.Order)
    orders.process(documents.silent).late.sink("late")
    orders.process(documents.moved, broadcast=made.source("customers", documents.Customer))
    arrows = [line.strip() for line in mermaid_of(made.plan).splitlines() if "->" in line]
    assert arrows == ["s0 --> o0", "s0 --> o1", "s1 -. to every shard .-> o1", "o0 -. late .-> k0"]


def test_bad_records_of_a_source_are_a_stream_of_their_own() -> None:
    made = sk.Job("shop")
    made.source("orders", Order, on_error="collect").errors.sink("bad")
    assert mermaid_of(made.plan).splitlines()[-1] == "    s0 --> k0"
