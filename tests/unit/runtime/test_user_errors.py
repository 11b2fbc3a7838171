"""What the code of users raises becomes a typed error with its place, whatever it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

import statekit as sk


@dataclass
class Order:
    user: str
    at: dt.datetime = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

    def __repr__(self) -> str:
        return str(self.lines)  # type: ignore[attr-defined]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * 5_000_000


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise ValueError("no pickle")


ERRORS: list[Callable[[], BaseException]] = [
    ZeroDivisionError,
    Unprintable,
    Huge,
    Unpicklable,
    lambda: UnicodeError("\ud800"),
    lambda: ExceptionGroup("several", [Unprintable(), ValueError(1)]),
    lambda: BaseExceptionGroup("several", [SystemExit(1)]),
    lambda: SystemExit(3),
    GeneratorExit,
    MemoryError,
]
BOOM: dict[str, Callable[[], BaseException]] = {}


def boom(*_: Any) -> Any:
    raise BOOM["error"]()


@sk.process(key="user")
def generator(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update(1)
    yield 1
    boom()


@sk.process(key="user")
def function(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    return boom()  # type: ignore[no-any-return]


@sk.process(key="user")
def several(orders: Iterator[Order], total: sk.ValueState[int]) -> Iterator[int]:
    for _ in orders:
        boom()
    yield 1


@sk.process(key="user", event_time="at")
def timed(order: Order, ctx: sk.Context) -> None:
    ctx.timers.set(order.at)


@timed.on_timer
def due(timer: sk.Timer, ctx: sk.Context) -> None:
    boom()


@sk.process(key="user")
def reducing(
    order: Order, most: Annotated[sk.ReducingState[int], sk.Reduce(lambda a, b: boom())]
) -> None:
    most.add(1)
    most.add(2)


def aggregating(which: str) -> Any:
    functions: dict[str, Any] = {
        "create": int,
        "add": lambda held, added: held + added,
        "result": lambda held: held,
    }

    @sk.process(key="user")
    def aggregate(
        order: Order,
        held: Annotated[
            sk.AggregatingState[int, int, int], sk.Aggregate(**{**functions, which: boom})
        ],
    ) -> Iterator[int | None]:
        held.add(1)
        yield held.get()

    return aggregate


PROCESSES = {
    "generator": generator,
    "function": function,
    "several": several,
    "timer": timed,
    "reduce": reducing,
    "create": aggregating("create"),
    "add": aggregating("add"),
    "result": aggregating("result"),
}


def processed(declared: Any) -> sk.Job:
    job = sk.Job("orders")
    stream = job.source("orders", Order).process(declared)
    if declared.output_type is not None:
        stream.sink("out")
    return job


def windowed(which: str) -> sk.Job:
    def create() -> int:
        return boom() if which == "create" else 0

    def add(held: int, order: Order) -> int:
        return boom() if which == "add" else held

    def result(held: int) -> int:
        return boom() if which == "result" else held

    job = sk.Job("orders")
    job.source("orders", Order).window(
        sk.tumbling("1 hour"), key="user", event_time="at"
    ).aggregate(
        result=sk.OwnAggregate(sk.Aggregate(create, add, result), accumulator=int, result=int)
    ).sink("out")
    return job


JOBS: dict[str, Callable[[], sk.Job]] = {
    **{name: lambda of=of: processed(of) for name, of in PROCESSES.items()},  # type: ignore[misc]
    **{f"window {name}": lambda of=name: windowed(of) for name in ("create", "add", "result")},  # type: ignore[misc]
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", JOBS)
def test_an_error_of_a_function_has_operator_key_epoch_and_cause(
    place: str, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOOM, "error", error)
    job = JOBS[place]()
    with pytest.raises(
        sk.ProcessError, match=r"operator '\w+' failed at key 'ann' in epoch \d"
    ) as e:
        job.run({"orders": [Order("ann")]}, drain=True)
    assert type(e.value.__cause__) is type(error())
    assert "Nothing of this epoch is committed" in str(e.value)
    assert len(str(e.value)) < 4000
    str(e.value).encode()


@pytest.mark.parametrize("begins", [0, 3])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_an_input_has_its_name_epoch_and_cause(
    error: Callable[[], BaseException], begins: int, tmp_path: Path
) -> None:
    def orders(fails_at: int) -> Iterator[Order]:
        for number in range(4):
            if number == fails_at:
                raise error()
            yield Order("ann")

    @sk.process(key="user")
    def counted(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
        yield 1

    job = sk.Job("orders")
    job.source("orders", Order).process(counted).sink("out")
    with pytest.raises(sk.ProcessError, match=rf"input 'orders' failed in epoch {begins}") as e:
        job.run({"orders": orders(begins)}, checkpoint=tmp_path / "c", epoch_size=1)
    assert type(e.value.__cause__) is type(error())
    assert len(job.run({"orders": orders(9)}, checkpoint=tmp_path / "c")["out"]) == 4 - begins


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_a_stateless_function_has_its_stream_and_cause(
    kind: str, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOOM, "error", error)

    @sk.process(key="user")
    def function(order: Order, total: sk.ValueState[int]) -> None:
        total.update(1)

    def fails(order: Order) -> Any:
        yield boom()

    def returns(order: Order) -> Any:
        return boom()

    fn: Any = fails if kind == "flat_map" else returns
    fn.__annotations__["return"] = {"map": int, "filter": bool, "flat_map": Iterator[int]}[kind]
    job = sk.Job("orders")
    orders = job.source("orders", Order)
    orders.process(function)  # a job has an operator
    getattr(orders, kind)(fn).sink("out")
    with pytest.raises(
        sk.ProcessError, match=rf"{kind} '{fn.__name__}' failed in epoch 0 with"
    ) as e:
        job.run({"orders": [Order("ann")]})
    assert type(e.value.__cause__) is type(error())


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_a_sink_has_its_name_epoch_and_cause(
    error: Callable[[], BaseException], tmp_path: Path
) -> None:
    def fails(records: list[Any], epoch: int) -> None:
        raise error()

    @sk.process(key="user")
    def count(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
        total.update((total.get() or 0) + 1)
        yield total.get() or 0

    def run(**outputs: Any) -> Any:
        job, given = processed(count), {"orders": [Order("ann")]}
        return job.run(given, checkpoint=tmp_path, outputs=outputs)

    with pytest.raises(sk.ProcessError, match="sink 'out' failed in epoch 0 with") as e:
        run(out=fails)
    assert type(e.value.__cause__) is type(error())
    assert run()["out"] == [1]  # nothing was committed, and the job starts again


@pytest.mark.parametrize("given", [KeyboardInterrupt, type("Stop", (BaseException,), {})])
def test_what_stops_a_run_passes_with_a_note(
    given: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(BOOM, "error", given)
    with pytest.raises(given) as e:
        processed(generator).run({"orders": [Order("ann")]}, checkpoint=tmp_path)
    (note,) = e.value.__notes__
    assert "operator 'generator'" in note
    assert "at key 'ann' in epoch 0" in note


class Odd:
    """A value of which nothing can be asked."""

    def __eq__(self, other: object) -> bool:
        return boom()  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return boom()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return boom()  # type: ignore[no-any-return]

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return boom()  # type: ignore[no-any-return]


PUTS: dict[str, Callable[..., Any]] = {
    "value": lambda odd, one, entries, all_: one.update(odd),
    "map key": lambda odd, one, entries, all_: entries.get(odd),
    "map value": lambda odd, one, entries, all_: entries.update({"a": odd}),
    "element": lambda odd, one, entries, all_: all_.append(odd),
    "output": lambda odd, one, entries, all_: odd,
}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, Unprintable])
def test_a_value_of_which_nothing_can_be_asked_is_refused(
    put: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOOM, "error", error)

    @sk.process(key="user")
    def odd(
        order: Order,
        one: sk.ValueState[int],
        entries: sk.MapState[str, int],
        all_: sk.ListState[int],
    ) -> Iterator[int]:
        found = PUTS[put](Odd(), one, entries, all_)
        yield 1 if found is None else found

    with pytest.raises(sk.StatekitError, match=r"<Odd, whose repr\(\) fails with"):
        processed(odd).run({"orders": [Order("ann")]})
