"""Declarations: what `@process` accepts, what it refuses, and that a process travels."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import cloudpickle
import pytest
from pydantic import BaseModel

import statekit as sk
from statekit.functions.process import Process
from statekit.testing import Harness, states
from tests.support.effort import SOAK


class Order(NamedTuple):
    customer: str
    cents: int
    weight: float
    coupon: str | None = None


def declared(fn: Callable[..., Any], key: Any = "customer") -> Process[Any, Any, Any]:
    return sk.process(key=key)(fn)


def unsupported(order: Order, seen: sk.ValueState[object]) -> None: ...
def unsupported_inside(order: Order, seen: sk.ListState[list[Callable[[], int]]]) -> None: ...
def unsupported_map_key(order: Order, seen: sk.MapState[list[int], int]) -> None: ...
def no_type_arguments(order: Order, seen: sk.ValueState) -> None: ...  # type: ignore[type-arg]
def no_map_arguments(order: Order, seen: sk.MapState) -> None: ...  # type: ignore[type-arg]
def reserved_name(order: Order, _seen: sk.ValueState[int]) -> None: ...
def name_beyond_ascii(order: Order, größe: sk.ValueState[int]) -> None: ...
def many_positional(order: Order, *seen: sk.ValueState[int]) -> None: ...
def many_named(order: Order, **seen: sk.ValueState[int]) -> None: ...
def neither_state_nor_context(order: Order, seen: int) -> None: ...
def optional_state(order: Order, seen: sk.ValueState[int] | None) -> None: ...
def not_annotated(order: Order, seen) -> None: ...  # type: ignore[no-untyped-def]
def record_not_annotated(seen, count: sk.ValueState[int]) -> None: ...  # type: ignore[no-untyped-def]
def record_is_no_record(seen: int, count: sk.ValueState[int]) -> None: ...
def state_first(seen: sk.ValueState[int], order: Order) -> None: ...
def context_first(seen: sk.Context, order: Order) -> None: ...
def reduce_missing(order: Order, seen: sk.ReducingState[int]) -> None: ...
def aggregate_missing(order: Order, seen: sk.AggregatingState[int, int, int]) -> None: ...
def reduce_of_value(order: Order, seen: Annotated[sk.ValueState[int], sk.Reduce(max)]) -> None: ...
def default_of_list(order: Order, seen: Annotated[sk.ListState[int], sk.Default(1)]) -> None: ...
def wrong_default(order: Order, seen: Annotated[sk.ValueState[int], sk.Default("x")]) -> None: ...
def default_without_bytes(
    order: Order, seen: Annotated[sk.ValueState[int], sk.Default(2**64)]
) -> None: ...
def two_defaults(
    order: Order, seen: Annotated[sk.ValueState[int], sk.Default(1), sk.Default(2)]
) -> None: ...
def option_is_a_class(order: Order, seen: Annotated[sk.ReducingState[int], sk.Reduce]) -> None: ...
def unknown_reducer(
    order: Order, seen: Annotated[sk.ReducingState[int], sk.Reduce("mean")]
) -> None: ...
def count_of_text(
    order: Order, seen: Annotated[sk.ReducingState[str], sk.Reduce("count")]
) -> None: ...


@pytest.mark.parametrize(
    "fn",
    [
        unsupported,
        unsupported_inside,
        unsupported_map_key,
        no_type_arguments,
        no_map_arguments,
        reserved_name,
        many_positional,
        many_named,
        neither_state_nor_context,
        optional_state,
        not_annotated,
        record_not_annotated,
        record_is_no_record,
        state_first,
        context_first,
        reduce_missing,
        aggregate_missing,
        reduce_of_value,
        default_of_list,
        wrong_default,
        default_without_bytes,
        two_defaults,
        option_is_a_class,
        unknown_reducer,
        count_of_text,
    ],
    ids=lambda fn: fn.__name__,
)
def test_a_wrong_parameter_is_refused_at_decoration_by_name(fn: Callable[..., Any]) -> None:
    with pytest.raises(sk.StateTypeError) as caught:
        declared(fn)
    assert fn.__name__ in str(caught.value)
    assert "seen" in str(caught.value)


def test_a_state_name_beyond_ascii_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="größe"):
        declared(name_beyond_ascii)


def good(order: Order, seen: sk.ValueState[int]) -> None: ...


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("name", "'name' is not a field"),
        (("customer", "name"), "'name' is not a field"),
        ("weight", "float"),
        (("customer", "weight"), "float"),
        ((), "must name"),
        (("customer", "customer"), "different fields"),
    ],
)
def test_a_wrong_key_is_refused_at_decoration(key: Any, said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said) as caught:
        declared(good, key)
    assert "good" in str(caught.value)


class Nested(NamedTuple):
    customer: tuple[str, int]
    listed: list[str]
    place: Order


@pytest.mark.parametrize("field", Nested._fields)
def test_a_key_field_that_is_no_scalar_is_refused(field: str) -> None:
    def nested(record: Nested) -> None: ...

    with pytest.raises(sk.StateTypeError, match=f"nested, key field '{field}'"):
        declared(nested, field)


class Scalars(NamedTuple):
    a: bool
    b: int
    c: str
    d: bytes
    e: dt.date
    f: dt.datetime
    g: int | None


def test_keys_may_be_of_every_scalar_type_and_optional() -> None:
    def scalars(record: Scalars, seen: sk.ValueState[int]) -> None: ...

    for field in Scalars._fields:
        assert declared(scalars, field).key == (field,)
    assert declared(scalars, list(Scalars._fields)).key == Scalars._fields


def no_return(order: Order, seen: sk.ValueState[int]): ...  # type: ignore[no-untyped-def]
def returns_one(order: Order, seen: sk.ValueState[int]) -> int: ...  # type: ignore[empty-body]
def returns_bare_iterator(order: Order) -> Iterator: ...  # type: ignore[type-arg,empty-body]
def returns_any(order: Order) -> Any: ...


@pytest.mark.parametrize(
    "fn", [no_return, returns_one, returns_bare_iterator, returns_any], ids=lambda fn: fn.__name__
)
def test_a_wrong_return_annotation_is_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(sk.StateTypeError, match=f"{fn.__name__}.*(return|annotate)"):
        declared(fn)


def iterates(order: Order) -> Iterator[int]:
    yield order.cents


def generates(order: Order) -> Generator[int, None, None]:
    yield order.cents


def returns_iterable(order: Order) -> Iterable[int]:
    return (order.cents,)


def returns_list(order: Order) -> list[int]:
    return [order.cents]


@pytest.mark.parametrize("fn", [iterates, generates, returns_iterable, returns_list])
def test_outputs_may_be_iterated_generated_or_listed(fn: Callable[..., Any]) -> None:
    assert Harness(declared(fn)).send(Order("a", 5, 1.0)) == [5]


def test_a_function_without_parameters_is_refused() -> None:
    def nothing() -> None: ...

    with pytest.raises(sk.StateTypeError, match="nothing: the first parameter takes the record"):
        declared(nothing)


@pytest.mark.parametrize("thing", [Order, print, 5, "text"])
def test_only_functions_are_decorated(thing: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="decorates a function"):
        declared(thing)


def test_a_lambda_is_refused_because_it_says_nothing() -> None:
    with pytest.raises(sk.StateTypeError, match="parameter 'order'"):
        declared(lambda order: None)


def test_a_method_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="parameter 'self'"):

        class Shop:
            @sk.process(key="customer")
            def sell(self, order: Order, seen: sk.ValueState[int]) -> None: ...


def test_a_static_function_of_a_class_is_refused_when_it_is_taken_from_an_instance() -> None:
    class Shop:
        @sk.process(key="customer")
        def sell(order: Order) -> None: ...

    assert isinstance(Shop.sell, Process)
    with pytest.raises(sk.StateTypeError, match="cannot be a method"):
        Shop().sell  # noqa: B018


def test_an_unknown_name_in_an_annotation_is_refused() -> None:
    def unknown(order: Order, seen: sk.ValueState[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(sk.StateTypeError, match=r"unknown.*Nowhere"):
        declared(unknown)


def test_annotations_as_text_find_classes_of_the_function_around_them() -> None:
    @dataclass
    class Local:
        name: str
        cents: int

    @sk.process(key="name")
    def local(record: Local, last: sk.ValueState[Local]) -> Iterator[Local]:
        previous = last.get()
        last.update(record)
        if previous is not None:
            yield previous

    harness = Harness(local)
    assert harness.send(Local("a", 1), Local("a", 2)) == [Local("a", 1)]
    assert harness.state("last", "a") == Local("a", 2)


# ------------------------------------------------------------------------------- calling it


@sk.process(key="customer")
def total_by_customer(
    order: Order, total: sk.ValueState[int], orders: sk.ListState[Order]
) -> Iterator[int]:
    """Adds up what a customer pays."""
    orders.append(order)
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


def test_calling_a_process_calls_the_function() -> None:
    given = states(total_by_customer, "a")
    assert list(total_by_customer(Order("a", 5, 1.0), **given)) == [5]
    assert list(total_by_customer(Order("a", 7, 1.0), *given.values())) == [12]
    assert given["orders"].get() == [Order("a", 5, 1.0), Order("a", 7, 1.0)]


def test_a_process_keeps_the_name_and_the_docstring_of_its_function() -> None:
    assert total_by_customer.name == total_by_customer.__name__ == "total_by_customer"
    assert total_by_customer.__doc__ == "Adds up what a customer pays."
    assert "by customer" in repr(total_by_customer)


def test_states_may_be_keyword_only() -> None:
    @sk.process(key="customer")
    def keyword_only(
        order: Order, *, total: sk.ValueState[int], ctx: sk.Context[str]
    ) -> Iterator[tuple[str, int]]:
        total.update((total.get() or 0) + order.cents)
        yield ctx.key, total.get() or 0

    assert Harness(keyword_only).send(Order("a", 5, 1.0), Order("a", 6, 1.0)) == [
        ("a", 5),
        ("a", 11),
    ]


def test_parameters_with_defaults_are_the_functions_own() -> None:
    @sk.process(key="customer")
    def defaults(  # type: ignore[no-untyped-def]
        order: Order,
        factor: int = 2,
        total: Annotated[sk.ValueState[int], sk.Default(0)] = None,  # type: ignore[assignment]
        note="x",
    ) -> Iterator[int]:
        total.update((total.get() or 0) + factor * order.cents)
        yield total.get() or 0

    assert [spec.name for spec in defaults.states] == ["total"]
    assert Harness(defaults).send(Order("a", 5, 1.0), Order("a", 6, 1.0)) == [10, 22]


def test_the_context_knows_key_epoch_operator_and_shard() -> None:
    @sk.process(key=("customer", "cents"))
    def told(
        order: Order, ctx: sk.Context[tuple[str, int]]
    ) -> Iterator[tuple[str, int, int, str, int]]:
        customer, cents = ctx.key
        yield customer, cents, ctx.epoch, ctx.operator, ctx.shard

    harness = Harness(told, parallelism=3)
    harness.send()
    assert harness.send(Order("a", 5, 1.0)) == [("a", 5, 1, "told", harness.shard_of(("a", 5)))]


class OrderDict(TypedDict):
    customer: str
    cents: int


class OrderModel(BaseModel):
    customer: str
    cents: int


@dataclass
class OrderData:
    customer: str
    cents: int


@pytest.mark.parametrize("record_type", [dict, OrderDict, OrderModel, OrderData])
def test_records_may_be_dicts_models_and_dataclasses(record_type: Any) -> None:
    def any_record(record, count: sk.ValueState[int]) -> Iterator[int]:  # type: ignore[no-untyped-def]
        count.update((count.get() or 0) + 1)
        yield count.get() or 0

    any_record.__annotations__["record"] = record_type
    harness = Harness(declared(any_record))
    assert harness.send({"customer": "a", "cents": 1}, {"customer": "a", "cents": 2}) == [1, 2]
    assert harness.state("count", "a") == 2


# ---------------------------------------------------------------------------------- travelling


def test_a_process_of_a_module_survives_cloudpickle() -> None:
    again = pickle.loads(cloudpickle.dumps(total_by_customer))
    assert again.name == "total_by_customer"
    assert [spec.name for spec in again.states] == ["total", "orders"]
    assert Harness(again).send(Order("a", 5, 1.0)) == [5]


MAIN = """
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from pydantic import BaseModel
import statekit as sk
{imports}

class Event(BaseModel):
    user: str
    value: int

{decorator}
class Last{base}:
    value: int

class Out(NamedTuple):
    user: str
    value: int
    total: int

def create() -> list[int]:
    return []

@sk.process(key="user")
def follow(
    event: Event,
    last: sk.ValueState[Last],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
    biggest: Annotated[sk.ReducingState[int], sk.Reduce(lambda a, b: max(a, b))],
    seen: Annotated[
        sk.AggregatingState[int, list[int], int],
        sk.Aggregate(create, lambda acc, one: [*acc, one], len),
    ],
) -> Iterator[Out]:
    last.update(Last(value=event.value))
    total.add(event.value)
    biggest.add(event.value)
    seen.add(event.value)
    yield Out(event.user, event.value, total.get() or 0)

sys.stdout.buffer.write({packed})
"""

READER = """
import pickle, sys
follow = pickle.loads(sys.stdin.buffer.read())
from statekit.testing import Harness
harness = Harness(follow)
outputs = harness.send({"user": "a", "value": 1}, {"user": "a", "value": 2})
assert [tuple(output) for output in outputs] == [("a", 1, 1), ("a", 2, 3)], outputs
assert harness.state("last", "a").value == 2
assert harness.state("seen", "a") == 2
assert harness.state("biggest", "a") == 2
"""


@pytest.mark.parametrize(
    ("imports", "decorator", "base", "packed"),
    [
        ("import cloudpickle", "", "(NamedTuple)", "cloudpickle.dumps(follow)"),
        ("import cloudpickle", "", "(BaseModel)", "cloudpickle.dumps(follow)"),
        # msgspec leaves on dataclasses what cloudpickle cannot take; the way to Spark removes it.
        (
            "from statekit.spark.worker.pickling import pickled",
            "@dataclass",
            "",
            "pickled(follow).data",
        ),
    ],
    ids=["namedtuple", "model", "dataclass"],
)
def test_a_process_of_main_with_its_classes_travels_to_another_process(
    imports: str, decorator: str, base: str, packed: str
) -> None:
    parts = {"imports": imports, "decorator": decorator, "base": base, "packed": packed}
    main = MAIN
    for name, text in parts.items():
        main = main.replace("{" + name + "}", text)
    _run(READER, _run(main, b""))


CYCLES = """
import datetime as dt, sys
from collections.abc import Iterator
from typing import NamedTuple
import cloudpickle
import statekit as sk

class Event(NamedTuple):
    user: str
    at: dt.datetime

    def names(self) -> str:
        return f"{visits.name} {counts.name}"

@sk.process(key="user", event_time="at")
def visits(event: Event, ctx: sk.Context, last: sk.ValueState[str], gap: int = 5) -> Iterator[str]:
    last.update(event.user)
    ctx.timers.set(event.at + dt.timedelta(seconds=gap), gone.__name__)
    yield f"{event.names()} {visits.name} {done.__name__}"

@visits.on_timer("gone")
def gone(timer: sk.Timer, last: sk.ValueState[str], word: str = "left") -> Iterator[str]:
    yield f"{last.get()} {word} {visits.name} after {gone.__name__} {counts.name}"

@sk.process(key="user", event_time="at")
def counts(event: Event, times: sk.ValueState[int], by: int = 1) -> Iterator[str]:
    times.update((times.get() or 0) + by)
    yield f"{visits.name} {gone.__name__}"

@counts.on_timer
def done(timer: sk.Timer, times: sk.ValueState[int], of: str = "all") -> Iterator[str]:
    yield f"{of} {times.get()} {counts.name} {visits.name}"

sys.stdout.buffer.write(cloudpickle.dumps(%s))
"""

CYCLES_READER = """
import datetime as dt, pickle, sys
from statekit.testing import Harness
visits = pickle.loads(sys.stdin.buffer.read())[-1]
harness = Harness(visits)
noon = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
outputs = harness.send({"user": "ann", "at": noon})
assert outputs == ["visits counts visits done"], outputs
outputs = harness.advance_watermark(noon + dt.timedelta(seconds=5))
assert outputs == ["ann left visits after gone counts"], outputs
"""


SENT = ["(gone, visits)", "(visits,)", "(done, visits)", "(Event, visits)", "(counts, visits)"]


@pytest.mark.parametrize("sent", SENT if SOAK else SENT[:1])
def test_a_process_travels_with_callbacks_that_name_it_and_that_it_names(sent: str) -> None:
    """Whichever of them pickle meets first."""
    _run(CYCLES_READER, _run(CYCLES % sent, b""))


def test_a_copied_process_is_complete_and_unknown_attributes_are_errors() -> None:
    again = copy.copy(total_by_customer)
    assert (again.name, again.__doc__) == (total_by_customer.name, total_by_customer.__doc__)
    with pytest.raises(AttributeError, match="'Process' object has no attribute"):
        _ = again.nothing  # type: ignore[attr-defined]


def _run(code: str, data: bytes) -> bytes:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        input=data,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("wrong", ["create", "add", "result", "merge"])
def test_an_aggregate_is_made_of_functions(wrong: str) -> None:
    functions: dict[str, Any] = dict.fromkeys(("create", "add", "result"), max)
    with pytest.raises(sk.StateTypeError, match=rf"Aggregate\({wrong}=0\): give a function"):
        sk.Aggregate(**{**functions, wrong: 0})


def test_a_context_that_declares_another_key_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match=r"Context\[int\] does not fit the key 'customer'"):

        @sk.process(key="customer")
        def misread(order: Order, ctx: sk.Context[int]) -> None: ...

    @sk.process(key="customer")
    def totals(order: Order, ctx: sk.Context[str]) -> None: ...

    with pytest.raises(sk.StateTypeError, match=r"gone, parameter 'ctx': Context\[bool\]"):

        @totals.on_timer
        def gone(timer: sk.Timer, ctx: sk.Context[bool]) -> None: ...

    with pytest.raises(sk.StateTypeError, match=r"an operator without key: declare Context$"):

        @sk.process()
        def unkeyed(order: Order, ctx: sk.Context[str]) -> None: ...


def test_process_without_parentheses_says_how_it_is_called() -> None:
    def totals(order: Order) -> None: ...

    with pytest.raises(sk.StateTypeError, match=r'such as @process\(key="customer"\) above def'):
        sk.process(totals)  # type: ignore[arg-type]
