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
from statekit.maintenance.rescale import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness, JobHarness
from statekit.working_copy.copies import MemoryCopies

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    buyer: str
    seller: str
    cents: int
    tips: int
    at: dt.datetime
    seen: dt.datetime


class Refund(NamedTuple):
    buyer: str
    seller: str
    at: dt.datetime
    seen: dt.datetime


class Fields(NamedTuple):
    """The fields that a construct names, of which class, and which of them were renamed."""

    key: tuple[str, ...] = ("buyer", "seller")
    at: str = "at"
    of: str = "cents"
    cls: Any = Order
    renamed: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


Orders = sk.Stream[Order]
Construct = Callable[[Orders, Fields], sk.Stream[Any]]

ORDERS = [
    Order("ann", "bob", 100, 5, NOON, NOON),
    Order("bob", "ann", 7, 70, NOON, NOON + dt.timedelta(hours=1)),
]


def one_by_one(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def spent(order: record, total: sk.ValueState[int]) -> Iterator[int]:  # type: ignore[valid-type]
        total.update((total.get() or 0) + order[2])  # type: ignore[index]
        yield total.get() or 0

    return orders.process(spent, name="op")


def all_of_a_key(orders: Orders, named: Fields) -> sk.Stream[Any]:
    records = Iterator[named.cls]  # type: ignore[name-defined]

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def spent(orders: records, total: sk.ValueState[int]) -> Iterator[int]:
        total.update((total.get() or 0) + sum(order[2] for order in orders))
        yield total.get() or 0

    return orders.process(spent, name="op")


def in_order_of_time(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, ordered=True, renamed=named.renamed)
    def passed(order: record) -> Iterator[str]:  # type: ignore[valid-type]
        yield repr([*order])

    return orders.process(passed, name="op")


def of_two_types(orders: Orders, named: Fields) -> sk.Stream[Any]:
    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def seen(event: Order | Refund, number: sk.ValueState[int]) -> Iterator[int]:
        number.update((number.get() or 0) + 1)
        yield number.get() or 0

    job: Any = orders.job
    return orders.union(job.source("refunds", Refund)).process(seen, name="op")


def with_timers(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def waits(order: record, ctx: sk.Context) -> Iterator[int]:  # type: ignore[valid-type]
        ctx.timers.set(ctx.event_time + dt.timedelta(hours=9))
        yield 1

    @waits.on_timer
    def due(timer: sk.Timer, ctx: sk.Context) -> Iterator[int]:
        yield 2

    return orders.process(waits, name="op")


def windowed(make: Callable[[Any, str], sk.Stream[Any]], **options: Any) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        kind = options.get("kind", sk.tumbling("1 hour"))
        others = {name: value for name, value in options.items() if name != "kind"}
        others |= {"key": named.key, "event_time": named.at, "renamed": named.renamed}
        windows = orders.window(kind, **others)
        return make(windows, named.of)

    return construct


def added(of: Callable[[str], Any]) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        return orders.aggregate(key=named.key, name="op", renamed=named.renamed, found=of(named.of))

    return construct


OWN: Any = sk.Aggregate(int, lambda held, more: held + more, lambda held: held, operator.add)

FUNCTIONS: dict[str, Construct] = {
    "one by one": one_by_one,
    "all of a key": all_of_a_key,
    "in order of time": in_order_of_time,
    "of two types": of_two_types,
    "with timers": with_timers,
    "count": windowed(lambda of, _: of.count(name="op")),
}
OF_A_FIELD: dict[str, Construct] = {
    "sum": windowed(lambda of, field: of.sum(field, name="op")),
    "min of sessions": windowed(lambda of, f: of.min(f, name="op"), kind=sk.session("1 hour")),
    "max, ordered": windowed(lambda of, field: of.max(field, name="op"), ordered=True),
    "mean, on change": windowed(lambda of, field: of.mean(field, name="op"), emit="change"),
    "top": windowed(lambda of, field: of.top(2, f"-{field}", name="op")),
    "last": windowed(lambda of, field: of.last(field, name="op")),
    "last by": windowed(lambda of, field: of.last(by=field, name="op")),
    "collect": windowed(lambda of, field: of.collect(field, name="op")),
    "own aggregate": windowed(
        lambda of, f: of.aggregate(OWN, accumulator=int, result=int, field=f, name="op")
    ),
}
OF_A_KEY: dict[str, Construct] = {
    "Count": added(lambda field: sk.Count(field)),
    "Sum": added(sk.Sum),
    "Min": added(sk.Min),
    "Max": added(sk.Max),
    "Mean": added(sk.Mean),
    "Top": added(lambda field: sk.Top(2, by=field)),
    "Last": added(lambda field: sk.Last(field, by="at")),
    "Last by": added(lambda field: sk.Last("tips", by=field)),
    "Collect": added(sk.Collect),
}
CONSTRUCTS = FUNCTIONS | OF_A_FIELD | OF_A_KEY

EVERY = [
    Fields(*of)
    for of in product(
        [("buyer",), ("seller",), ("buyer", "seller"), ("seller", "buyer")],
        ["at", "seen"],
        ["cents", "tips"],
    )
]


def job_of(construct: Construct, named: Fields) -> sk.Job:
    job = sk.Job("shop")
    construct(job.source("orders", named.cls), named).sink("out")
    return job


def begun(job: sk.Job, repository: Repository) -> Repository:
    """A checkpoint with an epoch of the job."""
    LocalRunner(job, repository, MemoryCopies()).epoch({"orders": ORDERS})
    return repository


def refusal(job: sk.Job, repository: Repository) -> str:
    """Why a job does not start on a checkpoint; "" if it does."""
    try:
        LocalRunner(job, repository, MemoryCopies())
    except StateSchemaError as error:
        return str(error)
    return ""


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
            lambda of, field: of.aggregate(own, accumulator=int, result=int, field=field, name="op")
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


# --------------------------------------------------------------------------------------- renaming


class Sold(NamedTuple):
    """An order whose fields have other names."""

    customer: str
    seller: str
    amount: int
    tips: int
    time: dt.datetime
    seen: dt.datetime


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
        LocalRunner(job_of(one_by_one, NAMED_ANEW), repository, MemoryCopies()).epoch({})
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
        ({"shop": 3}, "give a dict of names"),
        (["shop"], "give a dict of names"),
    ],
)
def test_what_is_no_renaming_is_refused(renamed: Any, message: str) -> None:
    for construct in (one_by_one, OF_A_FIELD["sum"], OF_A_KEY["Sum"]):
        with pytest.raises(StateTypeError, match=message):
            job_of(construct, Fields(renamed=renamed))


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
