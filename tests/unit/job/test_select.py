"""`Stream.select`: records of another class with fields of the given ones, without a function."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

import statekit as sk
from statekit.spark.worker.pickling import pickled, unpickled
from tests.support.instants import at


class Order(NamedTuple):
    customer: str
    cents: int
    note: str | None = None


class Bill(NamedTuple):
    payer: str
    cents: int


class Kept(NamedTuple):
    customer: str
    order: Order


ORDERS = [Order("ada", 500, "gift"), Order("bob", 20)]


@sk.process(key="customer")
def count(order: Order, orders: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    orders.update((orders.get() or 0) + 1)
    yield order.customer, orders.get() or 0


def selected(
    into: Any, taken: Any = Order, records: Any = tuple(ORDERS), **fields: str
) -> list[Any]:
    """The records that a select makes of some others, as a sink gets them."""
    job = sk.Job("shop")
    stream = job.source("in", taken).select(into, **fields).sink("out")
    stream.process(sk.process()(reads_of(into)))
    return job.run({"in": records}).outputs["out"]


def reads_of(cls: Any) -> Any:
    """A function without a key that takes records of a class and does nothing."""

    def reads(record: Any) -> None: ...

    reads.__annotations__ |= {"record": cls, "return": None}
    return reads


def select(into: Any, taken: Any = Order, **fields: Any) -> Any:
    return sk.Job("shop").source("in", taken).select(into, **fields)


# ------------------------------------------------------------------------------------- fields


def test_fields_get_those_of_their_name_or_the_named_ones() -> None:
    assert selected(Bill, payer="customer") == [Bill("ada", 500), Bill("bob", 20)]
    assert selected(Bill, payer="customer", cents="cents") == [Bill("ada", 500), Bill("bob", 20)]


def test_a_star_is_the_record_itself() -> None:
    assert selected(Kept, order="*") == [Kept(order.customer, order) for order in ORDERS]


def test_one_field_may_feed_several() -> None:
    class Pair(NamedTuple):
        first: str
        second: str
        order: Order | None
        again: Order

    given = {"first": "customer", "second": "customer", "order": "*", "again": "*"}
    (found,) = selected(Pair, records=ORDERS[:1], **given)
    assert found == Pair("ada", "ada", ORDERS[0], ORDERS[0])


def test_other_fields_get_the_defaults_of_the_new_class() -> None:
    class Priced(NamedTuple):
        customer: str
        currency: str = "EUR"
        cents: int = 0

    assert selected(Priced) == [Priced("ada", "EUR", 500), Priced("bob", "EUR", 20)]


def test_the_stream_has_a_name_a_class_and_a_line_in_the_plan() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    bills = orders.select(Bill, payer="customer")
    named = orders.select(Bill, payer="customer", name="named")
    assert (bills.name, named.name) == ("orders.Bill", "named")
    assert bills.record_class is named.record_class is Bill
    assert "├── select orders.Bill → Bill" in str(job)
    assert "select named: over the rows of orders" in job.explain()
    with pytest.raises(sk.StateTypeError, match=r"stream 'orders.Bill' would have the same name"):
        orders.select(Bill, payer="customer")


# ----------------------------------------------------------------------------------- flavours


@dataclasses.dataclass
class Data:
    payer: str
    cents: int = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keyword:
    cents: int
    payer: str


class Struct(msgspec.Struct):
    payer: str
    cents: int


class Renamed(msgspec.Struct, rename="camel", kw_only=True):
    cents: int = 3
    payer: str


class Model(pydantic.BaseModel):
    payer: str
    cents: int = pydantic.Field(ge=0, default=0)

    @pydantic.field_validator("payer")
    @classmethod
    def capital(cls, value: str) -> str:
        return value.title()


class Aliased(pydantic.BaseModel):
    payer: str = pydantic.Field(alias="who")
    cents: int = pydantic.Field(validation_alias="howMuch")


class Typed(TypedDict):
    payer: str
    cents: int


class Partial(TypedDict):
    payer: str
    cents: NotRequired[int]


def in_each_flavour(payer: str, cents: int) -> dict[Any, Any]:
    return {
        Bill: Bill(payer, cents),
        Data: Data(payer, cents),
        Keyword: Keyword(payer=payer, cents=cents),
        Struct: Struct(payer, cents),
        Renamed: Renamed(payer=payer, cents=cents),
        Model: Model(payer=payer, cents=cents),
        Aliased: Aliased.model_validate({"who": payer, "howMuch": cents}),
        Typed: Typed(payer=payer, cents=cents),
        Partial: Partial(payer=payer, cents=cents),
    }


@pytest.mark.parametrize("into", in_each_flavour("", 0))
def test_records_of_every_flavour_are_made(into: Any) -> None:
    found = selected(into, payer="customer")
    assert found == [in_each_flavour(of.customer, of.cents)[into] for of in ORDERS]
    assert {type(record) for record in found} <= {into, dict}


@pytest.mark.parametrize("taken", in_each_flavour("", 0))
def test_records_of_every_flavour_are_taken(taken: Any) -> None:
    fields = [("who", str), ("cents", int | None), ("own", taken)]
    row: Any = NamedTuple("Row", fields)  # type: ignore[misc]

    given = in_each_flavour("Ada", 5)[taken]
    made = selected(row, taken, [given], who="payer", own="*")
    assert made == [("Ada", 5, given)]


def test_an_absent_key_of_a_typed_dict_is_none_or_stays_absent() -> None:
    class Row(NamedTuple):
        payer: str
        cents: int | None

    class Same(TypedDict):
        payer: str
        cents: NotRequired[int]

    given: Any = [{"payer": "ada"}, {"payer": "bob", "cents": 5}]
    assert selected(Row, Partial, given) == [Row("ada", None), Row("bob", 5)]
    assert selected(Same, Partial, given) == given
    with pytest.raises(
        sk.StateTypeError, match=r"Typed.cents is int, and Partial.cents is int . None"
    ):
        select(Typed, Partial)


def test_a_value_that_the_new_class_refuses_fails_the_epoch_with_its_record() -> None:
    match = r"in epoch 0 with ValidationError(.|\n)*Order\(customer='ada', cents=-1"
    with pytest.raises(sk.ProcessError, match=match):
        selected(Model, records=[Order("ada", -1)], payer="customer")


@dataclasses.dataclass
class Computed:
    payer: str
    loud: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.loud = self.payer.upper()


def test_a_field_that_the_class_computes_is_computed_and_cannot_be_given() -> None:
    class Both(NamedTuple):
        payer: str
        loud: str

    assert selected(Computed, payer="customer") == [Computed("ada"), Computed("bob")]
    assert selected(Computed, Both, [Both("ada", "no")]) == [Computed("ada")]
    assert selected(Both, Computed, [Computed("ada")]) == [Both("ada", "ADA")]
    match = r"Computed computes 'loud' itself \(init=False\): leave it out"
    with pytest.raises(sk.StateTypeError, match=match):
        select(Computed, payer="customer", loud="customer")


# ----------------------------------------------------------------------------- what is refused


class Wide(NamedTuple):
    customer: str
    cents: float


class Certain(NamedTuple):
    note: str


class Choice(NamedTuple):
    customer: Literal["ada"]


class OfBill(NamedTuple):
    bill: Bill


NAMES = "choose from payer, cents"
CONVERT = "declare both with the same type, or convert it with map()"
CASES: list[tuple[Any, dict[str, Any], str]] = [
    (
        Bill,
        {},
        "select(Bill): Order has no field 'payer' for Bill.payer (it has customer, cents, note): "
        "name the field that it gets, as in select(Bill, payer=...)",
    ),
    (Bill, {"payer": "who"}, "Order has no field 'who' for Bill.payer (it has customer,"),
    (Bill, {"payer": "customer", "at": "note"}, f"Bill has no field 'at': {NAMES}"),
    (Bill, {"payer": "customer", "a": "b", "c": "d"}, f"Bill has no field 'a', 'c': {NAMES}"),
    (Bill, {"payer": "cents"}, f"Bill.payer is str, and Order.cents is int: {CONVERT}"),
    (Bill, {"payer": "*"}, f"Bill.payer is str, and the record is Order: {CONVERT}"),
    (Wide, {}, f"Wide.cents is float, and Order.cents is int: {CONVERT}"),
    (Choice, {}, "Choice.customer is Literal['ada'], and Order.customer is str"),
    (Certain, {}, "Certain.note is str, and Order.note is str | None"),
    (OfBill, {"bill": "*"}, "OfBill.bill is Bill, and the record is Order"),
    (int, {}, "select(int): int is not a record type. Use a pydantic BaseModel"),
    (dict, {}, "select(dict): a dict does not say which fields it has: use a record class"),
]


@pytest.mark.parametrize(("into", "fields", "message"), CASES)
def test_what_does_not_fit_is_refused_with_what_to_do(
    into: Any, fields: dict[str, Any], message: str
) -> None:
    job = sk.Job("shop")
    orders = job.source("in", Order)
    before = str(job)
    with pytest.raises(sk.StateTypeError) as refused:
        orders.select(into, **fields)
    assert message in str(refused.value)
    assert str(job) == before, "nothing was added"


def test_a_dict_does_not_say_which_fields_it_has() -> None:
    with pytest.raises(sk.StateTypeError, match=r"select\(Bill\): a dict does not say"):
        select(Bill, dict)


@sk.process(key="payer")
def each_bill(bill: Bill) -> Iterator[Bill]:
    yield bill


def test_each_stream_of_a_union_is_selected_from() -> None:
    job = sk.Job("shop")
    first, second = job.source("first", Order), job.source("second", Order)
    first.union(second).select(Bill, payer="customer").process(each_bill).sink("bills")
    order = Order("ada", 5)
    assert len(job.run({"first": [order], "second": [order, order]})["bills"]) == 3


def test_streams_of_several_types_are_refused() -> None:
    job = sk.Job("shop")
    orders, bills = job.source("orders", Order), job.source("bills", Bill)
    with pytest.raises(sk.StateTypeError, match=r"has Order \| Bill, and this needs records of"):
        orders.union(bills).select(Bill)
    both = job.source("both", Order, Bill)
    match = r"select: stream 'both' has Order \| Bill, and this needs records of one type.*of\(\)"
    with pytest.raises(sk.StateTypeError, match=match):
        both.select(Bill)
    assert both.of(Order).select(Bill, payer="customer").name == "both.Order.Bill"
    counts = orders.process(count)
    with pytest.raises(sk.StateTypeError, match=r"stream 'count' has tuple.*nothing to select"):
        counts.select(Bill)


def test_a_field_that_may_be_none_takes_one_that_may_not() -> None:
    class Optional(NamedTuple):
        customer: str | None
        note: str | None
        cents: int | str

    found = selected(Optional, records=[Order("ada", 5)])
    assert found == [Optional("ada", None, 5)]


# --------------------------------------------------------------------------------- its readers


def test_operators_transforms_and_sinks_read_selected_records() -> None:
    @sk.process(key="payer")
    def total(bill: Bill, cents: sk.ValueState[int]) -> Iterator[Bill]:
        cents.update((cents.get() or 0) + bill.cents)
        yield Bill(bill.payer, cents.get() or 0)

    class Name(NamedTuple):
        customer: str

    def shout(name: Name) -> Name:
        return Name(name.customer.upper())

    job = sk.Job("shop")
    bills = job.source("orders", Order).select(Bill, payer="customer").sink("bills")
    totals = bills.process(total)
    totals.select(Name, customer="payer").map(shout).sink("loud")
    large = bills.filter(lambda bill: bill.cents > 100, name="large")
    large.select(Name, customer="payer").sink("large")
    run = job.run({"orders": [*ORDERS, Order("bob", 5)]})
    assert run.outputs["bills"] == [Bill("ada", 500), Bill("bob", 20), Bill("bob", 5)]
    assert sorted(run.outputs["loud"]) == [Name("ADA"), Name("BOB"), Name("BOB")]
    assert run.outputs["large"] == [Name("ada")]


class Visit(NamedTuple):
    who: str
    at: dt.datetime


class When(NamedTuple):
    late_at: dt.datetime
    visit: Visit


def test_late_records_are_selected() -> None:
    @sk.process(key="who", event_time="at")
    def visits(visit: Visit) -> Iterator[str]:
        yield visit.who

    job = sk.Job("shop")
    seen = job.source("arrivals", Visit).process(visits).sink("seen")
    seen.late.select(When, late_at="at", visit="*").sink("late")
    given = [Visit("ada", at(10)), Visit("bob", at(5))]
    run = job.run({"arrivals": given}, epoch_size=1)
    assert (run.outputs["seen"], run.outputs["late"]) == (["ada"], [When(at(5), given[1])])


@dataclasses.dataclass
class Basket:
    customer: str
    items: list[str]


class Held(NamedTuple):
    customer: str
    basket: Basket


def test_each_reader_of_selected_records_may_change_them() -> None:
    @sk.process(key="customer")
    def empty(held: Held, n: sk.ValueState[int]) -> Iterator[Held]:
        held.basket.items.clear()
        yield held

    job = sk.Job("shop")
    baskets = job.source("baskets", Basket).sink("given")
    held = baskets.select(Held, basket="*").sink("held")
    held.process(empty).sink("emptied")
    held.process(empty, name="again").sink("again")
    mine = Basket("ada", ["tea"])
    run = job.run({"baskets": [mine]})
    full, emptied = Held("ada", Basket("ada", ["tea"])), Held("ada", Basket("ada", []))
    assert run.outputs["given"] == [mine] == [Basket("ada", ["tea"])]
    assert run.outputs["held"] == [full]
    assert run.outputs["emptied"] == run.outputs["again"] == [emptied]


# -------------------------------------------------------------------------------- its columns


class Amount(NamedTuple):
    cents: Annotated[decimal.Decimal, sk.Decimals(12, 2)]


class Rounded(NamedTuple):
    cents: Annotated[decimal.Decimal, sk.Decimals(12, 1)]


class SameAmount(NamedTuple):
    cents: Annotated[decimal.Decimal, sk.Decimals(12, 2)] | None


class Either(NamedTuple):
    cents: int | float


class Cents(NamedTuple):
    cents: int


class Payer(NamedTuple):
    payer: str


class Whole(NamedTuple):
    model: Model


class Defaulted(NamedTuple):
    payer: str
    more: int = 5


COLUMNS: list[tuple[Any, Any, dict[str, str], bool]] = [
    (Order, Bill, {"payer": "customer"}, True),
    (Order, Kept, {"order": "*"}, True),
    (Amount, SameAmount, {}, True),
    (Model, Whole, {"model": "*"}, True),
    (Typed, Struct, {}, True),
    (Model, Payer, {}, False),
    (Bill, Model, {}, False),
    (Bill, Computed, {}, False),
    (Bill, Defaulted, {}, False),
    (Amount, Rounded, {}, False),
    (Cents, Either, {}, False),
]


@pytest.mark.parametrize(("taken", "into", "fields", "are_columns"), COLUMNS)
def test_columns_are_selected_where_no_class_and_no_other_type_changes_a_value(
    taken: Any, into: Any, fields: dict[str, str], are_columns: bool
) -> None:
    job = sk.Job("shop")
    job.source("in", taken).select(into, **fields)
    (transform,) = job.plan.transforms
    assert transform.function.selects_columns is are_columns
    assert not transform.function.keeps_records


def test_a_selection_is_sent_to_workers_as_it_is_declared() -> None:
    job = sk.Job("shop")
    job.source("in", Order).select(Bill, payer="customer")
    (transform,) = job.plan.transforms
    assert transform.function.apply(list(ORDERS), "bills", 0) == [Bill("ada", 500), Bill("bob", 20)]
    again = unpickled(pickled(transform.function))
    assert again.apply(list(ORDERS), "bills", 0) == [Bill("ada", 500), Bill("bob", 20)]


def test_an_operator_with_a_key_of_another_value_is_not_chained_through_a_selection() -> None:
    class Named(NamedTuple):
        customer: str
        payer: str

    @sk.process(key="customer")
    def pairs(order: Order, n: sk.ValueState[int]) -> Iterator[Named]:
        yield Named(order.customer, order.customer[::-1])

    class Back(NamedTuple):
        customer: str

    @sk.process(key="customer")
    def of_names(back: Back, n: sk.ValueState[int]) -> None: ...

    job = sk.Job("shop")
    job.source("in", Order).process(pairs).select(Back, customer="payer").process(of_names)
    assert "the transforms of the outputs of pairs run by themselves" in job.explain()
