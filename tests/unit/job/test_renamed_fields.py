"""Fields of records that have another name now: `renamed=`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateSchemaError, StateTypeError
from statekit.maintenance.migrate import Migration
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness, JobHarness
from statekit.testing.drivers.harness import job_of as harness_job
from statekit.working_copy.copies import MemoryCopies
from tests.support.field_constructs import (
    CONSTRUCTS,
    NOON,
    OF_A_FIELD,
    OF_A_KEY,
    ORDERS,
    Fields,
    Order,
    Sold,
    begun,
    job_of,
    one_by_one,
    refusal,
)

RENAMED = {"buyer": "customer", "cents": "amount", "at": "time"}
NAMED_ANEW = Fields(("customer", "seller"), "time", "amount", Sold, RENAMED)
LATER = [
    Order("ann", "bob", 30, 5, NOON + dt.timedelta(minutes=9), NOON),
    Order("bob", "ann", 50, 90, NOON + dt.timedelta(hours=5), NOON),
]
# Those that are declared by the name of one field for another purpose are left out.
RENAMABLE = {name: CONSTRUCTS[name] for name in CONSTRUCTS if name not in ("of two types", "Last")}


def outputs_after(first: sk.Job, second: sk.Job, orders: list[Any]) -> list[Any]:
    """The outputs of two epochs, each by a job, and of the end of event time."""
    repository = Repository.in_memory()
    JobHarness(first, checkpoint=repository).send(orders=ORDERS)
    harness = JobHarness(second, checkpoint=repository)
    harness.send(orders=orders)
    harness.drain()
    return [tuple(found) if isinstance(found, tuple) else found for found in harness.outputs["out"]]


@pytest.mark.parametrize("name", RENAMABLE)
def test_renamed_fields_are_refused_until_they_are_said_to_be_renamed(name: str) -> None:
    construct = RENAMABLE[name]
    repository = begun(job_of(construct, Fields()), Repository.in_memory())
    silent = NAMED_ANEW._replace(renamed={})
    assert "renamed=" in refusal(job_of(construct, silent), repository)
    assert refusal(job_of(construct, NAMED_ANEW), repository) == ""


@pytest.mark.parametrize("name", RENAMABLE)
def test_a_job_with_renamed_fields_continues_with_the_same_results(name: str) -> None:
    construct = RENAMABLE[name]
    job, anew = job_of(construct, Fields()), job_of(construct, NAMED_ANEW)
    as_before = outputs_after(job, job, LATER)
    assert as_before
    assert outputs_after(job, anew, [Sold(*order) for order in LATER]) == as_before


def test_once_a_start_has_stored_new_names_renamed_may_stay_and_may_go() -> None:
    repository = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    for _ in range(2):
        LocalRunner(job_of(one_by_one, NAMED_ANEW).plan, repository, MemoryCopies()).epoch({})
    silent = NAMED_ANEW._replace(renamed={})
    assert refusal(job_of(one_by_one, silent), repository) == ""
    assert "'customer' is still" not in refusal(job_of(one_by_one, Fields()), repository)
    assert "keyed by other fields" in refusal(job_of(one_by_one, Fields()), repository)


def test_the_refusal_of_a_new_name_offers_renamed() -> None:
    repository = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    silent = NAMED_ANEW._replace(renamed={})
    assert (
        "nothing says that 'buyer' has another name now. Nothing was changed. Declare "
        "key=('buyer', 'seller'), or renamed={'buyer': 'customer'} if these are new names of the "
        "same fields, or give"
    ) in refusal(job_of(one_by_one, silent), repository)


def test_renamed_and_swapped_fields_are_refused() -> None:
    repository = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    swapped = NAMED_ANEW._replace(key=("seller", "customer"))
    assert "keyed by other fields" in refusal(job_of(one_by_one, swapped), repository)


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"seller": "buyer"}, "Order still has a field 'seller', so that it has not another name"),
        ({"shop": "place"}, "'place' is no field of Order"),
        ({"b": "buyer", "a": "b"}, "'b' has another name now, too: .* 'buyer', for both"),
        ({"shop": 3}, "give a dict of names"),
        (["shop"], "give a dict of names"),
    ],
)
def test_what_is_no_renaming_is_refused(renamed: Any, message: str) -> None:
    for construct in (one_by_one, OF_A_FIELD["sum"], OF_A_KEY["Sum"]):
        with pytest.raises(StateTypeError, match=message):
            job_of(construct, Fields(renamed=renamed))


# -------------------------------------------------------------------------------- records in state


class PaidTuple(NamedTuple):
    at: dt.datetime
    buyer: str
    cents: int


class NewTuple(NamedTuple):
    """Its new fields have defaults, so that a row without them could be read."""

    time: dt.datetime
    customer: str = "nobody"
    amount: int = -1


@dataclass
class PaidData:
    at: dt.datetime
    buyer: str
    cents: int


@dataclass
class NewData:
    time: dt.datetime
    customer: str = "nobody"
    amount: int = -1


class PaidStruct(msgspec.Struct):
    at: dt.datetime
    buyer: str
    cents: int


class NewStruct(msgspec.Struct):
    time: dt.datetime
    customer: str = "nobody"
    amount: int = -1


class PaidModel(BaseModel):
    at: dt.datetime
    buyer: str
    cents: int


class NewModel(BaseModel):
    time: dt.datetime
    customer: str = "nobody"
    amount: int = -1


class PaidDict(TypedDict):
    at: dt.datetime
    buyer: str
    cents: int


class NewDict(TypedDict):
    time: dt.datetime
    customer: str
    amount: int


CLASSES = [
    (PaidTuple, NewTuple),
    (PaidData, NewData),
    (PaidStruct, NewStruct),
    (PaidModel, NewModel),
    (PaidDict, NewDict),
]
PAID = {"buyer": "ann", "cents": 5, "at": NOON}
NEWLY_PAID = {"time": NOON + dt.timedelta(minutes=1), "customer": "ann", "amount": 7}


def keeping(cls: Any, key: str, time: str, **options: Any) -> sk.Process[Any, ..., Any]:
    """A function that keeps its records in states of several kinds."""

    @sk.process(key=key, event_time=time, **options)
    def kept(
        record: cls,
        last: sk.ValueState[cls],
        every: sk.ListState[tuple[int, cls]],
        by_place: sk.MapState[str, dict[str, cls | None]],
    ) -> Iterator[str]:
        yield repr(([*every], dict(by_place.items()), last.get()))
        last.update(record)
        every.append((1, record))
        by_place[key] = {"buyer": record, "none": None}

    return kept


@pytest.mark.parametrize(("before", "now"), CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("is_migrated", [False, True])
def test_records_in_states_are_read_by_their_new_names(
    before: Any, now: Any, is_migrated: bool, tmp_path: Path
) -> None:
    Harness(keeping(before, "buyer", "at"), checkpoint=tmp_path).send(before(**PAID))
    renamed = keeping(now, "customer", "time", renamed=RENAMED)
    if is_migrated:
        job = harness_job(renamed)
        assert Migration(job, tmp_path).run(lambda done, shards: None) is not None
        renamed = keeping(now, "customer", "time")
    paid = now(time=NOON, customer="ann", amount=5)
    expected = repr(([(1, paid)], {"buyer": {"buyer": paid, "none": None}}, paid))
    assert Harness(renamed, checkpoint=tmp_path).send(now(**NEWLY_PAID)) == [expected]
    if not is_migrated:  # rows of before are left
        with pytest.raises(StateSchemaError, match="renamed="):
            Harness(keeping(now, "customer", "time"), checkpoint=tmp_path)


@pytest.mark.parametrize(("before", "now"), CLASSES, ids=lambda cls: cls.__name__)
def test_buffered_records_are_read_by_their_new_names(before: Any, now: Any) -> None:
    def passing(cls: Any, key: str, time: str, **options: Any) -> sk.Process[Any, ..., Any]:
        @sk.process(key=key, event_time=time, ordered=True, **options)
        def passed(record: cls) -> Iterator[str]:
            yield repr(record)

        return passed

    repository = Repository.in_memory()
    Harness(passing(before, "buyer", "at"), checkpoint=repository).send(before(**PAID))
    harness = Harness(passing(now, "customer", "time", renamed=RENAMED), checkpoint=repository)
    found = harness.send(now(**NEWLY_PAID))
    found += harness.advance_watermark(NOON + dt.timedelta(hours=1))
    paid = now(time=NOON, customer="ann", amount=5)
    assert found == [repr(paid), repr(now(**NEWLY_PAID))]


def test_buffered_records_of_several_types_are_read_by_their_new_names() -> None:
    def passing(one: Any, two: Any, key: str, time: str, **options: Any) -> Any:
        either = one | two

        @sk.process(key=key, event_time=time, ordered=True, **options)
        def passed(record: either) -> Iterator[list[str]]:  # type: ignore[valid-type]
            yield [type(record).__name__, str(record[0])]  # type: ignore[index]

        return passed

    def newer() -> tuple[Any, Any]:
        class Order(NamedTuple):
            customer: str
            time: dt.datetime

        class Refund(NamedTuple):
            customer: str
            time: dt.datetime
            why: str = "none"

        return Order, Refund

    class Order(NamedTuple):
        buyer: str
        at: dt.datetime

    class Refund(NamedTuple):
        buyer: str
        at: dt.datetime
        why: str = "none"

    repository = Repository.in_memory()
    given = Order("ann", NOON), Refund("bob", NOON)
    Harness(passing(Order, Refund, "buyer", "at"), checkpoint=repository).send(*given)
    anew = passing(*newer(), "customer", "time", renamed={"buyer": "customer", "at": "time"})
    found = Harness(anew, checkpoint=repository).advance_watermark(NOON + dt.timedelta(hours=1))
    assert sorted(found) == [["Order", "ann"], ["Refund", "bob"]]
