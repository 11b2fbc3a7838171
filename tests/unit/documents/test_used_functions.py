"""A document knows when a function that its functions use has changed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from tests.support.places import ROOT

FILES = {
    "shop_used/__init__.py": "",
    "shop_used/rates.py": """
def rate(cents):
    return 2 * cents

def other(cents):
    return cents
""",
    "shop_used/jobs.py": """
from collections.abc import Iterator
from typing import NamedTuple
import statekit as sk
from shop_used import rates

FEE = 5

class Order(NamedTuple):
    customer: str
    cents: int

def rounded(cents):
    return again(round(rates.rate(cents)), 1)

def again(cents, depth):
    return rounded(cents) if depth > 1 else cents

def unused(cents):
    return cents

@sk.process(key="customer")
def total(order: Order, sum: sk.ValueState[int]) -> Iterator[Order]:
    values = [rounded(each) + FEE for each in (order.cents,)]
    sum.update((sum.get() or 0) + values[0])
    yield Order(order.customer, sum.get() or 0)

job = sk.Job("shop")
job.source("orders", Order).process(total).sink("totals")
""",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("shop_used")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def document() -> str:
    job: sk.Job = importlib.import_module("shop_used.jobs").job
    return job.to_json()


def uses(text: str) -> list[str]:
    declared: dict[str, Any] = json.loads(text)["steps"][1]["with"]["declared"]
    return list(declared["uses"])


def edited(home: Path, name: str, change: Callable[[str], str]) -> None:
    forget()
    path = home / "shop_used" / name
    path.write_text(change(path.read_text()) + "\n# with another size\n")


def test_the_functions_of_the_package_that_a_function_uses_are_in_the_document(home: Path) -> None:
    assert uses(document()) == [
        "shop_used.jobs:again",
        "shop_used.jobs:rounded",
        "shop_used.rates:rate",
    ]


def test_another_process_writes_the_same_document(home: Path) -> None:
    code = "from shop_used.jobs import job; print(job.to_json(), end='')"
    env = {"PYTHONPATH": f"{home}:{ROOT}", "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == document()


@pytest.mark.parametrize(
    ("name", "before", "after", "changed"),
    [
        ("rates.py", "2 * cents", "3 * cents", "shop_used.rates:rate"),
        ("jobs.py", "depth > 1", "depth > 2", "shop_used.jobs:again"),
        ("jobs.py", "rates.rate(cents)", "rates.other(cents)", "shop_used.jobs:rounded"),
    ],
)
def test_a_document_is_refused_when_a_function_that_is_used_has_changed(
    home: Path, name: str, before: str, after: str, changed: str
) -> None:
    text = document()
    edited(home, name, lambda content: content.replace(before, after))
    with pytest.raises(sk.StateTypeError) as refused:
        sk.Job.from_json(text)
    message = str(refused.value)
    assert f"the source of '{changed}', which shop_used.jobs:total uses, has changed" in message
    assert "changed=True" in message
    assert sk.Job.from_json(text, changed=True).name == "shop"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("jobs.py", "def unused(cents):", "def unused(cents, more):"),
        ("rates.py", "def other(cents):", "def other(cents, more):"),
        ("jobs.py", "FEE = 5", "FEE = 6"),
        ("jobs.py", "def rounded", "\n# moved\n\ndef rounded"),
    ],
)
def test_other_changes_are_not_noticed(home: Path, name: str, before: str, after: str) -> None:
    text = document()
    edited(home, name, lambda content: content.replace(before, after))
    assert sk.Job.from_json(text).name == "shop"


def test_a_document_of_an_earlier_release_has_no_uses_and_is_read(home: Path) -> None:
    given = json.loads(document())
    del given["steps"][1]["with"]["declared"]["uses"]
    assert sk.Job.from_json(json.dumps(given)).name == "shop"
    given["steps"][1]["with"]["declared"]["uses"] = ["rounded"]
    with pytest.raises(sk.StateTypeError, match=r"declared\.uses: .* is no object"):
        sk.Job.from_json(json.dumps(given))
