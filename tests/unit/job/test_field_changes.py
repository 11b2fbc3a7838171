"""A restart whose names of fields stand for other fields than the stored ones do."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Callable, Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateSchemaError, StateTypeError
from statekit.maintenance.migrate import Migration
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.testing import Harness, JobHarness
from tests.support.field_constructs import (
    CONSTRUCTS,
    FUNCTIONS,
    OF_A_FIELD,
    OF_A_KEY,
    ORDERS,
    Construct,
    Fields,
    Order,
    Orders,
    Sold,
    begun,
    job_of,
    one_by_one,
    refusal,
    windowed,
    with_timers,
)

EVERY = [
    Fields(*of)
    for of in product(
        [("buyer",), ("seller",), ("buyer", "seller"), ("seller", "buyer")],
        ["at", "seen"],
        ["cents", "tips"],
    )
]


def meant(name: str, named: Fields) -> tuple[Any, ...]:
    """What a construct uses of the fields that it is given."""
    at = () if name in OF_A_KEY else (named.at,)
    return named.key, at, () if name in FUNCTIONS else (named.of,)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_restart_that_names_any_other_field_of_the_same_type_is_refused(name: str) -> None:
    construct = CONSTRUCTS[name]
    for stored in (EVERY[0], Fields(), EVERY[-1]):
        repository = begun(job_of(construct, stored), Repository.in_memory())
        for declared in EVERY:
            is_refused = refusal(job_of(construct, declared), repository) != ""
            assert is_refused == (meant(name, stored) != meant(name, declared)), declared
        assert repository.latest_epoch() == 0


def test_swapped_key_fields_show_both_sides_and_leave_everything_as_it_is(tmp_path: Path) -> None:
    begun(job_of(one_by_one, Fields()), Repository(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StateSchemaError) as refused:
        job_of(one_by_one, Fields(("seller", "buyer"))).run(
            {"orders": ORDERS}, checkpoint=tmp_path, drain=False
        )
    assert str(refused.value) == (
        "operator 'op' is keyed by other fields than its state in the checkpoint:\n"
        "    stored in the checkpoint   declared in the code\n"
        "    key                        key\n"
        "  ≠ buyer: str                 seller: str\n"
        "  ≠ seller: str                buyer: str\n"
        "A key would get the state of another one: the same fields are in another order. Nothing "
        "was changed. Declare key=('buyer', 'seller'), or give the operator another name=, and let "
        "the state of the old one go with allow_dropped_state=True"
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_allowing_to_drop_state_does_not_allow_another_key() -> None:
    repository = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    with pytest.raises(StateSchemaError, match="keyed by other fields"):
        JobHarness(
            job_of(one_by_one, Fields(("seller", "buyer"))),
            checkpoint=repository,
            allow_dropped_state=True,
        )


def test_another_field_with_the_event_time_is_refused() -> None:
    repository = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    assert refusal(job_of(one_by_one, Fields(at="seen")), repository) == (
        "operator 'op' takes its event time from 'at' in the checkpoint and from 'seen' in the "
        "code: 'at' is still in Order, and the watermark, timers and buffered records of the "
        "checkpoint are of 'at'. Nothing was changed. Declare event_time='at', or give the "
        "operator another name=, and let the state of the old one go with allow_dropped_state=True"
    )


def test_another_field_of_an_aggregate_is_refused() -> None:
    own = OF_A_FIELD["own aggregate"]
    repository = begun(job_of(own, Fields()), Repository.in_memory())
    assert "field: cents in the checkpoint, tips in the code" in refusal(
        job_of(own, Fields(of="tips")), repository
    )


def test_timers_are_not_left_without_event_time() -> None:
    repository = begun(job_of(with_timers, Fields()), Repository.in_memory())
    without: Any = Fields(at=None)  # type: ignore[arg-type]
    assert "timers by event time would never fire" in refusal(
        job_of(with_timers, without), repository
    )
    JobHarness(job_of(with_timers, without), checkpoint=repository, allow_dropped_state=True)
    stateful = begun(job_of(one_by_one, Fields()), Repository.in_memory())
    assert refusal(job_of(one_by_one, without), stateful) == ""


class Bill(NamedTuple):
    buyer: str
    time: dt.datetime


def selected(time: str, record: Any = Order) -> sk.Job:
    """A job whose operator takes records that are selected from others."""

    @sk.process(key="buyer", event_time="time", ordered=True)
    def passed(bill: Bill) -> Iterator[str]:
        yield bill.buyer

    job = sk.Job("shop")
    orders: Any = job.source("orders", record)
    large = orders.filter(lambda order: order.cents > 1, name="large")
    bills = large.select(Bill, time=time, buyer=record._fields[0], name="bills")
    bills.process(passed, name="op").sink("out")
    return job


def store(time: str) -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    spent = job.add(sk.KVStore("op", key=str, value=int, event_time=time))
    spent.put(orders, key="buyer", value="cents").sink("out")
    spent.get(orders, key="buyer").sink("found")
    return job


@pytest.mark.parametrize("made", [selected, store])
def test_the_event_time_of_selected_records_is_not_taken_from_another_field(
    made: Callable[[str], sk.Job],
) -> None:
    repository = begun(made("at"), Repository.in_memory())
    assert refusal(made("at"), repository) == ""
    assert "from 'at' in the checkpoint and from 'seen' in the code: 'at' is still a" in refusal(
        made("seen"), repository
    )


def test_a_selected_event_time_whose_field_is_gone_has_another_name() -> None:
    repository = begun(selected("at"), Repository.in_memory())
    assert refusal(selected("time", Sold), repository) == ""


def test_operations_of_a_store_may_name_other_keys() -> None:
    def of(key: str) -> sk.Job:
        job = sk.Job("shop")
        spent = job.add(sk.KVStore("op", key=str, value=int))
        spent.put(job.source("orders", Order), key=key, value="cents").sink("out")
        return job

    assert refusal(of("seller"), begun(of("buyer"), Repository.in_memory())) == ""


# ------------------------------------------------------------------------ other ways into a start


def test_a_savepoint_is_not_restored_with_swapped_key_fields(tmp_path: Path) -> None:
    write_savepoint(begun(job_of(one_by_one, Fields()), Repository(tmp_path / "a")), "s")
    swapped = job_of(one_by_one, Fields(("seller", "buyer")))
    with pytest.raises(StateSchemaError, match="keyed by other fields"):
        swapped.run(
            {"orders": []},
            checkpoint=tmp_path / "b",
            from_savepoint=tmp_path / "a/savepoints/s",
            drain=False,
        )
    assert Repository(tmp_path / "b").latest_epoch() is None


def rewritten(repository: Repository, _: Path) -> Repository:
    rewrite_checkpoint(repository, key_groups=16, parallelism=2)
    return repository


def rescaled(repository: Repository, _: Path) -> Repository:
    rescale_offline(repository, 3)
    return repository


def out_of_a_savepoint(repository: Repository, path: Path) -> Repository:
    write_savepoint(repository, "s")
    target = Repository(path)
    import_savepoint(Savepoint.at(f"{repository.url}/savepoints/s"), target, parallelism=2)
    return target


@pytest.mark.parametrize("moved", [rewritten, rescaled, out_of_a_savepoint])
def test_commands_that_move_state_keep_the_names_of_fields(
    moved: Callable[[Repository, Path], Repository], tmp_path: Path
) -> None:
    longest = reducing(max)
    begun(job_of(longest, Fields()), Repository(tmp_path / "a"))
    repository = moved(Repository(tmp_path / "a"), tmp_path / "b")
    assert refusal(job_of(longest, Fields()), repository) == ""
    assert "keyed by other fields" in refusal(
        job_of(longest, Fields(("seller", "buyer"))), repository
    )
    assert "event time" in refusal(job_of(longest, Fields(at="seen")), repository)
    assert "combined by max" in refusal(job_of(reducing(min), Fields()), repository)


def test_statekit_migrate_refuses_swapped_key_fields(tmp_path: Path) -> None:
    begun(job_of(one_by_one, Fields()), Repository(tmp_path))
    swapped = Migration(job_of(one_by_one, Fields(("seller", "buyer"))), tmp_path)
    with pytest.raises(StateSchemaError, match="keyed by other fields"):
        swapped.run(lambda done, shards: None)


# ---------------------------------------------------------------------------------- other options

WINDOWS = [
    sk.tumbling("1 hour"),
    sk.tumbling("2 hours"),
    sk.tumbling("1 hour", offset="10 minutes"),
    sk.sliding("1 hour", every="30 minutes"),
    sk.session("1 hour"),
    sk.session("2 hours"),
]


@pytest.mark.parametrize(("stored", "declared"), [*permutations(WINDOWS, 2)], ids=str)
def test_other_windows_are_refused(stored: Any, declared: Any) -> None:
    first, second = (
        job_of(windowed(lambda of, _: of.count(name="op"), kind=kind), Fields())
        for kind in (stored, declared)
    )
    repository = begun(first, Repository.in_memory())
    assert f"window: {stored} in the checkpoint, {declared} in the code" in refusal(
        second, repository
    )


def test_an_own_aggregate_that_adds_by_another_function_of_python_is_refused() -> None:
    def of_own(add: Any) -> Construct:
        own: Any = sk.Aggregate(int, add, int)
        return windowed(
            lambda of, field: of.aggregate(
                op=sk.OwnAggregate(own, accumulator=int, result=int, field=field), name="op"
            )
        )

    first, second = of_own(max), of_own(min)
    repository = begun(job_of(first, Fields()), Repository.in_memory())
    assert "add: max in the checkpoint, min in the code" in refusal(
        job_of(second, Fields()), repository
    )


# --------------------------------------------------------------------------------------- reducers


def reducing(fn: Any, of: Any = None, migrate: Any = None) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        value, reducer = of or int, sk.Reduce(fn)

        @sk.process(key=named.key, event_time=named.at, migrate=migrate or {})
        def longest(
            order: Order,
            found: Annotated[sk.ReducingState[value], reducer],  # type: ignore[valid-type]
        ) -> Iterator[int]:
            yield 1

        return orders.process(longest, name="op")

    return construct


def aggregating(fn: Any) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        aggregate: Any = sk.Aggregate(int, fn, int)

        @sk.process(key=named.key)
        def longest(
            order: Order, found: Annotated[sk.AggregatingState[int, int, int], aggregate]
        ) -> Iterator[int]:
            yield 1

        return orders.process(longest, name="op")

    return construct


BUILT_IN = [sum, min, max, "count", operator.mul, operator.or_, operator.and_, math.gcd, pow]


@pytest.mark.parametrize("construct", [reducing, aggregating])
def test_a_restart_with_another_reducer_of_python_is_refused(
    construct: Callable[[Any], Construct],
) -> None:
    functions = BUILT_IN if construct is reducing else [fn for fn in BUILT_IN if callable(fn)]
    for stored in functions:
        repository = begun(job_of(construct(stored), Fields()), Repository.in_memory())
        for declared in functions:
            refused = refusal(job_of(construct(declared), Fields()), repository)
            assert (refused == "") == (stored == declared), (stored, declared)


def test_a_refused_reducer_shows_both() -> None:
    repository = begun(job_of(reducing(max), Fields()), Repository.in_memory())
    assert refusal(job_of(reducing(min), Fields()), repository) == (
        "state 'found' of operator 'op' is combined by max in the checkpoint and by min in the "
        "code: its stored values are no results of min. Nothing was changed. Declare max again, or "
        "give the state another name"
    )


@pytest.mark.parametrize(
    ("stored", "declared"),
    [(sum, operator.add), ("max", max), (max, lambda a, b: max(a, b)), (lambda a, b: b, min)],
    ids=["sum", "max", "to a lambda", "from a lambda"],
)
def test_reducers_of_one_name_and_functions_of_the_user_are_accepted(
    stored: Any, declared: Any
) -> None:
    repository = begun(job_of(reducing(stored), Fields()), Repository.in_memory())
    assert refusal(job_of(reducing(declared), Fields()), repository) == ""


def test_a_hook_converts_values_of_another_reducer() -> None:
    def of_number(total: int) -> str:
        return str(total)

    repository = begun(job_of(reducing(max), Fields()), Repository.in_memory())
    as_text = reducing(min, str, {"found": of_number})
    assert refusal(job_of(as_text, Fields()), repository) == ""
    assert "changed its type" in refusal(job_of(reducing(min, str), Fields()), repository)


# ------------------------------------------------------------------------------------ plain dicts


def of_dicts(*key: str, **options: Any) -> sk.Process[Any, ..., Any]:
    @sk.process(key=key, **options)
    def seen(row: dict, number: sk.ValueState[int]) -> Iterator[int]:  # type: ignore[type-arg]
        number.update((number.get() or 0) + 1)
        yield number.get() or 0

    return seen


def test_keys_of_plain_dicts_are_compared_by_their_names() -> None:
    repository = Repository.in_memory()
    Harness(of_dicts("a", "b"), checkpoint=repository).send({"a": "x", "b": "y"})
    for key in (("b", "a"), ("a", "c")):
        with pytest.raises(StateSchemaError, match="keyed by other fields"):
            Harness(of_dicts(*key), checkpoint=repository)
    renamed = Harness(of_dicts("a", "c", renamed={"b": "c"}), checkpoint=repository)
    assert renamed.send({"a": "x", "c": "y"}) == [2]
    with pytest.raises(StateTypeError, match="still has a field 'a'"):
        of_dicts("b", "a", renamed={"a": "b", "b": "a"})
