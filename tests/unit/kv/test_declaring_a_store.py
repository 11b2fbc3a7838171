"""Declaring a store: what fits, and what is refused and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

import statekit as sk
from statekit.job.progress import Run
from tests.support.instants import at

START = at(1)


class Payment(NamedTuple):
    account: str
    cents: int
    at: dt.datetime = START
    names: list[str] = []  # noqa: RUF012  a NamedTuple
    note: int | None = None


class Query(NamedTuple):
    account: str


class Balance(NamedTuple):
    key: str
    value: int | None


class Seen(NamedTuple):
    key: str


class Payments(NamedTuple):
    entries: list[Payment]


class BalanceDict(TypedDict):
    key: str
    value: int | None


class Declared:
    """A job with a store and two sources."""

    def __init__(self, **options: Any) -> None:
        self.job = sk.Job("bank")
        store: Any = sk.KVStore("kv", **{"key": str, "value": int, **options})
        self.store = self.job.add(store)
        self.payments = self.job.source("payments", Payment)
        self.queries = self.job.source("queries", Query)
        self.first: sk.Stream[Balance]

    def run(self, *payments: Payment, queries: list[Query] | None = None) -> Run:
        return self.job.run({"payments": payments, "queries": queries or []})


TIMED = {"event_time": "at"}
SORTED = {"sort": int}

# --------------------------------------------------------------------------------- refused stores


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"history": "1 day"}, "history= is in event time: give event_time="),
        ({"history": "1 day", "sort": int, **TIMED}, "leave out sort="),
        ({"history": "1 day", "ttl": sk.TTL("1 day"), **TIMED}, "leave out ttl="),
        ({"lateness": "1 day"}, "lateness= needs event_time="),
        ({"history": "soon", **TIMED}, r"\): history='soon': give a timedelta or a text"),
        ({"history": "0 s", **TIMED}, r"\): history='0 s': give more than nothing"),
        ({"history": dt.timedelta.max, **TIMED}, r"\): history=.*from 0 to 9998 years"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said):
        Declared(**options)


# ------------------------------------------------------------------------------ refused operations

Act = Callable[[Declared], object]

REFUSED: dict[str, tuple[dict[str, Any], Act, str]] = {
    "a stream of another job": (
        {},
        lambda d: d.store.put(sk.Job("other").source("payments", Payment), key="account"),
        "put takes a stream of job 'bank', not <Stream 'payments' of Payment>",
    ),
    "no stream": ({}, lambda d: d.store.get([Query("a")], key="account"), "takes a stream of job"),
    "no stream of records": (
        {},
        lambda d: d.store.get_with([Query("a")], key="account"),
        "get_with takes a stream of job 'bank', not",
    ),
    "no stream to update from": (
        {},
        lambda d: d.store.update("payments", lambda value, record: 1, key="account"),
        "update takes a stream of job 'bank', not 'payments'",
    ),
    "no stream to put from": (
        {},
        lambda d: d.store.put_if_absent(None, key="account", value="cents"),
        "put_if_absent takes a stream of job 'bank', not None",
    ),
    "no stream to compare with": (
        {},
        lambda d: d.store.compare_and_set({}, key="account", expected="note", value="cents"),
        "compare_and_set takes a stream of job 'bank', not {}",
    ),
    "a union": (
        {},
        lambda d: d.store.get(d.payments.union(d.queries), key="account"),
        r"get takes the records of one stream, and payments \| queries is a union",
    ),
    "a scan without order": (
        {},
        lambda d: d.store.scan(d.queries, key="account"),
        "scan needs an order within a key: declare the store with sort=",
    ),
    "a scan of a text": (
        SORTED,
        lambda d: d.store.scan(d.queries, key="account", limit="3"),
        "Query has no field '3'",
    ),
    "a scan of half an entry": (
        SORTED,
        lambda d: d.store.scan(d.queries, key="account", limit=1.5),
        r"scan\(limit=1.5\): give a number of entries, at least 1",
    ),
    "a range that is closed in another way": (
        SORTED,
        lambda d: d.store.count(d.queries, key="account", closed="yes"),
        r"count: closed='yes': use one of left, right, both, none",
    ),
    "a prefix of numbers": (
        SORTED,
        lambda d: d.store.first(d.queries, key="account", prefix="account"),
        r"first\(prefix='account'\): the ordered part is int. A text or bytes has a prefix",
    ),
    "a prefix of more parts than there are": (
        {"sort": tuple[str, int]},
        lambda d: d.store.last(d.payments, key="account", prefix=("account", "cents", "at")),
        r"the ordered part is tuple\[str, int\]. A text or bytes has a prefix",
    ),
    "a trim without order": (
        {},
        lambda d: d.store.trim(d.queries, key="account", keep=3),
        "trim needs an order within a key: declare the store with sort=",
    ),
    "a trim to less than nothing": (
        SORTED,
        lambda d: d.store.trim(d.queries, key="account", keep=-1),
        r"trim\(keep=-1\): give a number of entries, at least 0",
    ),
    "one key instead of a list": (
        {},
        lambda d: d.store.multi_get(d.payments, keys="account"),
        "Payment.account is str: declare it as list.str., or give a function",
    ),
    "keys of another type": (
        {"key": int},
        lambda d: d.store.multi_get(d.payments, keys="names"),
        "Payment.names is list.str.: declare it as list.int., or give a function",
    ),
    "a name that is no text": (
        {},
        lambda d: d.store.get(d.payments, key="account", name=5),
        "stream 5: a name is a text",
    ),
    "late requests of nothing": (
        TIMED,
        lambda d: d.store.late(None),
        r"late\(None\): give what an operation of the store returned",
    ),
    "a scan of no entries": (
        SORTED,
        lambda d: d.store.scan(d.queries, key="account", limit=0),
        r"scan\(limit=0\): give a number of entries, at least 1",
    ),
    "a scan whose entries have other fields": (
        SORTED,
        lambda d: d.store.scan(d.queries, key="account", into=Payments),
        r"Payments.entries is list\[.*Payment\]: declare it as a list of records with the fields "
        "sort: int, value: int",
    ),
    "multi_get with order": (
        SORTED,
        lambda d: d.store.multi_get(d.payments, keys="names"),
        "multi_get is for stores without sort=: use scan, or several gets",
    ),
    "no ordered part": (
        SORTED,
        lambda d: d.store.get(d.queries, key="account"),
        "has an ordered part: give sort=",
    ),
    "an ordered part too many": (
        {},
        lambda d: d.store.get(d.payments, key="account", sort="cents"),
        "has no ordered part: leave out sort=",
    ),
    "as_of without history": (
        TIMED,
        lambda d: d.store.get(d.payments, key="account", as_of="at"),
        "as_of= needs values of the past: declare the store with history=",
    ),
    "too few parts of a key": (
        {"key": tuple[str, int]},
        lambda d: d.store.put(d.payments, key="account", value="cents"),
        "key='account' has 1 parts, and keys of the store have 2: give as many fields",
    ),
    "too many parts of a key": (
        {},
        lambda d: d.store.put(d.payments, key=("account", "cents"), value="cents"),
        "has 2 parts, and keys of the store have 1",
    ),
    "no key": (
        {},
        lambda d: d.store.get(d.queries, key=5),
        "key=5: give a field, several fields, or a function",
    ),
    "no such key": (
        {},
        lambda d: d.store.get(d.queries, key="name"),
        r"Query has no field 'name' for .*key \(it has account\)",
    ),
    "no such value": (
        {},
        lambda d: d.store.put(d.queries, key=lambda query: query.account, value="cents"),
        r"Query has no field 'cents' for .*value \(it has account\)",
    ),
    "no such keys": (
        {},
        lambda d: d.store.multi_get(d.queries, keys="names"),
        r"stream 'queries': Query has no field 'names' \(it has account\)",
    ),
    "no time": (
        TIMED,
        lambda d: d.store.get(d.queries, key=lambda query: query.account),
        "Query has no field 'at'",
    ),
    "no time of many": (
        TIMED,
        lambda d: d.store.multi_get(d.queries, keys=lambda query: ["a"]),
        "Query has no field 'at'",
    ),
    "a time that is none": (
        {"event_time": "cents"},
        lambda d: d.store.multi_get(d.payments, keys="names"),
        "at is datetime, and Payment.cents is int",
    ),
    "a constant bound": (
        SORTED,
        lambda d: d.store.scan(d.queries, key="account", start=3),
        "3 is no field of Query: give the name of a field, or a function of a record",
    ),
    "a value that may be absent": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="note"),
        "kv.put.payments: value is int, and .*: None is no value, use update",
    ),
    "a key of another type": (
        {},
        lambda d: d.store.get(d.payments, key="cents"),
        "key is str, and Payment.cents is int: declare both with the same type",
    ),
    "a value of another type": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="names"),
        "value is int, and Payment.names is",
    ),
    "a value of another type, and a function": (
        {},
        lambda d: d.store.put(d.payments, key=lambda payment: "a", value="account"),
        "value is int, and Payment.account is str",
    ),
    "the record as a value of another type": (
        {},
        lambda d: d.store.put_if_absent(d.payments, key="account"),
        "value is int, and the record is Payment",
    ),
    "an expected value of another type": (
        {},
        lambda d: d.store.compare_and_set(
            d.payments, key="account", expected="account", value="cents"
        ),
        r"expected is .*int.*, and Payment.account is str",
    ),
    "a type that is no key": (
        {"key": float},
        lambda d: d.store.get(d.queries, key=lambda query: 0.5),
        "float cannot be a key",
    ),
    "a type that is no key of many": (
        {"key": float},
        lambda d: d.store.multi_get(d.queries, keys=lambda query: [0.5]),
        "keys of type float are not supported: use several gets",
    ),
    "no class of answers": (
        {},
        lambda d: d.store.get(d.queries, key="account", into=5),
        "into=5 must be a class of records",
    ),
    "a class of answers that has no fields": (
        {},
        lambda d: d.store.get(d.queries, key="account", into=int),
        "into=<class 'int'> must be a class of records",
    ),
    "a class of dicts": (
        {},
        lambda d: d.store.get(d.queries, key="account", name="dicts", into=BalanceDict),
        "dicts: into=BalanceDict is a class of dicts, which do not say their class",
    ),
    "a field that answers do not have": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="cents", into=Payment),
        r"answers have no 'account' for Payment \(they have key, value\)",
    ),
    "a field that has another type in answers": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="cents", into=Balance),
        "Balance.value is .*, and that of answers is int: declare it with the same type",
    ),
    "a class of answers that another operation has": (
        {},
        lambda d: d.store.get(d.payments, key="account", name="second", into=Balance),
        "the answers of second and first would have one class.* Balance: give each operation",
    ),
    "a name that is the same one as a class": (
        {},
        lambda d: d.store.get(d.payments, key="account", name="Balance"),
        "the answers of Balance and first would have one class, or classes of one name",
    ),
    "all entries as those to trim": (
        SORTED,
        lambda d: d.store.trim(d.payments, key="account", keep=None),
        "trim.keep=None. would remove all entries: give the number",
    ),
    "a direction that is none": (
        SORTED,
        lambda d: d.store.scan(d.payments, key="account", reverse="yes"),
        "scan.reverse='yes'.: use True or False",
    ),
    "a number that is none": (
        TIMED,
        lambda d: d.store.increment(d.payments, key="account", by=None),
        "increment.by=None.: expected int, got NoneType None: give a value of type int, or the fi",
    ),
    "the name of another stream": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="cents", name="queries"),
        "stream 'queries' would have the same name as source 'queries'",
    ),
    "the name of another operation": (
        {},
        lambda d: d.store.remove(d.queries, key="account", name="first"),
        "stream 'first' would have the same name as stream 'first'",
    ),
    "a name that is none": (
        {},
        lambda d: d.store.put(d.payments, key="account", value="cents", name="1 2"),
        "stream '1 2': names have letters, digits",
    ),
    "its own answers": (
        {},
        lambda d: d.store.put(
            d.first.map(lambda found: found, into=Balance, name="own"),
            key="key",
            value=lambda own: 1,
        ),
        "the outputs of kv would be fed back to their own inputs, and a job has no cycles",
    ),
    "late requests without time": (
        {},
        lambda d: d.store.late(d.first),
        "has no late requests: give what an operation of a store with event_time= returned",
    ),
    "late requests of no answers": (
        TIMED,
        lambda d: d.store.late(d.queries),
        "<Stream 'queries' of Query> has no late requests",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_an_operation_that_does_not_fit_is_refused_and_leaves_nothing_behind(what: str) -> None:
    options, act, said = REFUSED[what]
    declared: Any = Declared(**options)
    if not options:
        declared.first = declared.store.get(
            declared.queries, key="account", into=Balance, name="first"
        )
        declared.first.sink("first")
    declared.job.source("unused", Query)
    before = str(declared.job)
    with pytest.raises(sk.StateTypeError, match=said):
        act(declared)
    if what != "its own answers":  # which are read by a stream of the user
        assert str(declared.job) == before
    if not options:
        put = declared.store.put(declared.payments, key="account", value="cents", name="added")
        put.sink("put")
        inputs = {"payments": [Payment("a", 5)], "queries": [Query("a")], "unused": []}
        done = declared.job.run(inputs)
        assert (done.outputs["first"], done.outputs["put"]) == ([Balance("a", None)], [("a", 5)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": 5}, "give the name of the store as text"),
        ({"value": int | None}, "None stands for an absent value"),
        ({"value": None}, "None stands for an absent value"),
        ({"key": "str"}, "key='str'.*: give a type, such as str"),
        ({"key": tuple}, "give a type, such as str or tuple.str, int."),
        ({"ttl": "30 days"}, "ttl='30 days': give a TTL, as in ttl=sk.TTL"),
        ({"lateness": "5 seconds"}, "lateness= needs event_time="),
        ({"ties": "arrival"}, "ties= needs event_time="),
        ({"ties": "time"}, "ties='time': use"),
        ({"history": "7 days"}, "history= is in event time: give event_time="),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"name": "kv", "key": str, "value": int, **options}
    with pytest.raises(sk.StateTypeError, match=said):
        sk.KVStore(given.pop("name"), **given)


@pytest.mark.parametrize("wrong", ["ab", {"a", "b"}, {"a": 1}, None])
def test_a_function_of_keys_returns_a_list(wrong: Any) -> None:
    declared = Declared()
    declared.store.multi_get(declared.payments, keys=lambda payment: wrong).sink("found")
    with pytest.raises(sk.StateTypeError, match=r"kv\.multi_get\.payments: .* is no list of keys"):
        declared.run(Payment("a", 5))


def test_a_value_that_does_not_fit_is_an_error_that_names_the_operation() -> None:
    declared = Declared()
    declared.store.put(declared.payments, key="account", value=lambda payment: None).sink("put")
    with pytest.raises(sk.StateTypeError, match=r"kv\.put\.payments.*value"):
        declared.run(Payment("a", 5))


class Kind(enum.Enum):
    ONE = "one"


@pytest.mark.parametrize("key", [uuid.UUID, dt.timedelta, Kind, tuple[uuid.UUID, int]])
def test_a_list_of_keys_of_any_type_may_be_empty(key: Any) -> None:
    declared = Declared(key=key)
    declared.store.multi_get(declared.payments, keys=lambda payment: []).sink("found")
    assert [answer.values for answer in declared.run(Payment("a", 5)).outputs["found"]] == [[]]


def test_nan_equals_itself_in_a_comparison() -> None:
    declared = Declared(value=float)
    nan = float("nan")
    declared.store.put(declared.queries, key="account", value=lambda query: nan).sink("put")
    swap = declared.store.compare_and_set(
        declared.payments, key="account", expected=lambda payment: nan, value=lambda payment: 1.5
    )
    swap.sink("swapped")
    done = declared.run(Payment("a", 5), Payment("a", 6), queries=[Query("a")])
    assert [(answer.won, answer.value) for answer in done.outputs["swapped"]] == [
        (True, 1.5),
        (False, 1.5),
    ]


def test_an_expected_value_of_another_type_is_an_error() -> None:
    declared = Declared()
    declared.store.compare_and_set(
        declared.payments, key="account", expected=lambda payment: "x", value=lambda payment: 1
    ).sink("swapped")
    with pytest.raises(sk.StatekitError, match="'x'"):
        declared.run(Payment("a", 5))


def test_an_update_takes_a_function() -> None:
    job = sk.Job("bank")
    store = job.add(sk.KVStore("kv", key=str, value=int))
    payments = job.source("payments", Payment)
    wrong: Any = 5
    with pytest.raises(sk.StateTypeError, match="update takes a function of a value and a record"):
        store.update(payments, wrong, key="account")


def test_a_store_without_a_job_has_no_operations() -> None:
    store = sk.KVStore("kv", key=str, value=int)
    queries = sk.Job("bank").source("queries", Query)
    with pytest.raises(sk.StateTypeError, match="belongs to no job: add it first"):
        store.get(queries, key="account")


def test_a_store_belongs_to_one_job() -> None:
    declared = Declared()
    for job in (declared.job, sk.Job("other")):
        with pytest.raises(sk.StateTypeError, match="belongs to job 'bank': make a store for each"):
            job.add(declared.store)


def test_a_job_has_one_store_of_a_name() -> None:
    declared = Declared()
    second = declared.job.add(sk.KVStore("kv", key=str, value=int))
    declared.store.get(declared.queries, key="account")
    with pytest.raises(sk.StateTypeError, match="operator 'kv' would have the same name as"):
        second.get(declared.payments, key="account")


def test_an_event_time_ttl_needs_event_time() -> None:
    declared = Declared(ttl=sk.TTL("1 day", clock="event"))
    with pytest.raises(sk.StateTypeError, match="there is no event time to expire by"):
        declared.store.get(declared.queries, key="account")


@pytest.mark.parametrize("parts", [("a",), ("a", 1, 2), "ab"])
def test_a_function_that_returns_a_key_of_other_parts_is_an_error_of_the_run(parts: Any) -> None:
    for kind in ("get", "multi_get"):
        declared = Declared(key=tuple[str, int])
        if kind == "get":
            declared.store.get(declared.queries, key=lambda query: parts)
        else:
            declared.store.multi_get(declared.queries, keys=lambda query: [parts])
        with pytest.raises(sk.StatekitError, match="is no key of 2 parts"):
            declared.run(queries=[Query("a")])


# ------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "key", [("account", "cents"), ["account", "cents"], lambda payment: payment[:2]]
)
def test_keys_of_several_parts_are_fields_or_a_function(key: Any) -> None:
    declared = Declared(key=tuple[str, int], value=Payment)
    declared.store.put(declared.payments, key=key)
    pairs = declared.store.multi_get(
        declared.payments, keys=lambda payment: [(payment.account, 1), (payment.account, 2)]
    )
    pairs.sink("pairs")
    declared.store.get(declared.queries, key=lambda query: (query.account, 1)).sink("found")
    payment = Payment("a", 1)
    done = declared.run(payment, queries=[Query("a"), Query("b")])
    assert [tuple(answer) for answer in done.outputs["pairs"]] == [(payment, [payment, None])]
    assert set(done.outputs["found"][0]._fields) == {"key_1", "key_2", "value"}
    assert all(answer.key == (answer.key_1, answer.key_2) for answer in done.outputs["found"])
    assert sorted(map(tuple, done.outputs["found"]))[1:] == [("b", 1, None)]


def test_an_operation_may_read_a_stream_of_an_operator_that_was_declared_after_the_store() -> None:
    declared = Declared()
    declared.store.get(declared.queries, key="account").sink("before")
    total = declared.payments.aggregate(key="account", cents=sk.Sum("cents"))
    declared.store.put(total, key="account", value="cents").sink("put")
    declared.store.get(declared.queries, key="account", name="after").sink("after")
    done = declared.run(Payment("a", 1), Payment("a", 2), queries=[Query("a")])
    assert [answer.value for answer in done.outputs["before"]] == [None]
    assert (
        [answer.value for answer in done.outputs["after"]] == [done.outputs["put"][-1].value] == [3]
    )


def test_requests_that_would_be_stored_under_one_name_are_refused() -> None:
    declared = Declared(**TIMED)
    declared.store.get(declared.payments, key="account", name="a.b", into=Balance)
    with pytest.raises(
        sk.StateTypeError,
        match=r"requests of a-b and a\.b would be stored under one name, a_b_get_requests",
    ):
        declared.store.get(declared.payments, key="account", name="a-b", into=Seen)


def calls_to_declare(operations: int) -> int:
    """How many functions are called to declare so many operations."""
    declared, calls = Declared(**TIMED), Counter[str]()
    sys.setprofile(lambda frame, event, arg: calls.update([event]))
    try:
        for number in range(operations):
            got = declared.store.get(declared.payments, key="account", name=f"get_{number}")
            declared.store.late(got)
    finally:
        sys.setprofile(None)
    return calls["call"]


def test_the_declaration_of_an_operation_takes_as_long_as_that_of_the_one_before_it() -> None:
    calls_to_declare(1)
    assert calls_to_declare(40) < 2.5 * calls_to_declare(20)


def test_two_stores_may_feed_each_other_in_turn_but_not_in_a_cycle() -> None:
    declared = Declared()
    second = declared.job.add(sk.KVStore("second", key=str, value=int))
    put = declared.store.put(declared.payments, key="account", value="cents")
    copied = second.put(put, key="key", value="value")
    with pytest.raises(sk.StateTypeError, match="kv and second would be fed"):
        declared.store.get(copied, key="key")
    second.get(declared.queries, key="account").sink("found")
    done = declared.run(Payment("a", 7), queries=[Query("a")])
    assert [answer.value for answer in done.outputs["found"]] == [7]


# ---------------------------------------------------------------------------- answers and records


def test_answers_have_the_parts_of_the_request_and_the_results() -> None:
    declared = Declared(**TIMED)
    store, payments = declared.store, declared.payments
    answers = {
        "put": store.put(payments, key="account", value="cents"),
        "remove": store.remove(payments, key="account"),
        "get": store.get(payments, key="account"),
        "get_with": store.get_with(payments, key="account"),
        "multi_get": store.multi_get(payments, keys="names"),
        "update": store.update(payments, lambda cents, payment: cents, key="account"),
        "put_if_absent": store.put_if_absent(payments, key="account", value="cents"),
        "compare_and_set": store.compare_and_set(
            payments, key="account", expected="cents", value="cents"
        ),
    }
    assert {kind: answer.record_class._fields for kind, answer in answers.items()} == {
        "put": ("key", "value", "at"),
        "remove": ("key", "at", "value"),
        "get": ("key", "at", "value"),
        "get_with": ("key", "record", "at", "value"),
        "multi_get": ("record", "at", "values"),
        "update": ("key", "record", "at", "before", "value"),
        "put_if_absent": ("key", "record", "at", "won", "value"),
        "compare_and_set": ("key", "record", "at", "won", "value"),
    }
    assert answers["put"].name == "kv.put.payments"


@dataclasses.dataclass
class AsDataclass:
    value: int | None
    key: str


class AsModel(pydantic.BaseModel):
    value: int | None


class AsDict(TypedDict):
    values: list[int | None]


class AsStruct(msgspec.Struct):
    key: str


@pytest.mark.parametrize(
    ("into", "expected"),
    [
        (Balance, Balance("a", 5)),
        (AsDataclass, AsDataclass(5, "a")),
        (AsModel, AsModel(value=5)),
        (AsStruct, AsStruct("a")),
    ],
)
def test_answers_are_records_of_a_class_with_some_of_their_fields(into: Any, expected: Any) -> None:
    declared = Declared()
    declared.store.put(declared.payments, key="account", value="cents")
    declared.store.get(declared.queries, key="account", into=into, name="class").sink("found")
    assert declared.run(Payment("a", 5), queries=[Query("a")]).outputs["found"] == [expected]


class Found(NamedTuple):
    values: list[int | None]


@pytest.mark.parametrize(
    ("kind", "options"), [("get", {"key": "account"}), ("multi_get", {"keys": "names"})]
)
def test_a_second_operation_of_one_kind_and_stream_needs_a_name(
    kind: str, options: dict[str, Any]
) -> None:
    declared = Declared()
    declare = getattr(declared.store, kind)
    declare(declared.payments, **options)
    with pytest.raises(sk.StateTypeError, match=f"has a {kind} of payments, 'kv.{kind}.payments'"):
        declare(declared.payments, **options)
    declare(declared.payments, **options, name="second")


@pytest.mark.parametrize("into", [Found, AsDict])
def test_answers_of_multi_get_may_have_a_class(into: Any) -> None:
    declared = Declared()
    declared.store.put(declared.payments, key="account", value="cents")
    declared.store.multi_get(declared.payments, keys="names", into=into).sink("found")
    done = declared.run(Payment("a", 5, names=["b", "a", "a"]), Payment("b", 6, names=[]))
    expected = [into(values=[]), into(values=[6, 5, 5])]
    assert sorted(done.outputs["found"], key=repr) == sorted(expected, key=repr)


@dataclasses.dataclass
class DataclassRecord:
    account: str
    names: list[str]
    at: dt.datetime


class ModelRecord(pydantic.BaseModel):
    account: str
    names: list[str]
    at: dt.datetime


class DictRecord(TypedDict):
    account: str
    names: list[str]
    at: dt.datetime


class StructRecord(msgspec.Struct):
    account: str
    names: list[str]
    at: dt.datetime


@pytest.mark.parametrize("options", [{}, TIMED])
@pytest.mark.parametrize("cls", [DataclassRecord, ModelRecord, DictRecord, StructRecord])
def test_records_and_values_are_of_any_class_of_records(cls: Any, options: Any) -> None:
    def account_of(record: Any) -> Any:
        return record["account"] if cls is DictRecord else record.account

    job = sk.Job("classes")
    store: Any = job.add(sk.KVStore("kv", key=str, value=cls, **options))
    records = job.source("records", cls)
    store.put(records, key="account").sink("put")
    store.get(records, key=account_of).sink("get")
    store.get_with(records, key="account").sink("get_with")
    store.multi_get(records, keys="names").sink("multi_get")
    store.update(records, lambda value, record: value, key="account").sink("update")
    store.put_if_absent(records, key="account").sink("put_if_absent")
    store.compare_and_set(records, key="account", expected="*", value="*").sink("swapped")
    record = cls(account="a", names=["a", "b"], at=at(1))
    done = job.run({"records": [record]})
    assert [answer.value for answer in done.outputs["put"]] == [record]
    assert [answer.value for answer in done.outputs["get"]] == [record]
    assert [(answer.record, answer.value) for answer in done.outputs["get_with"]] == [
        (record, record)
    ]
    found = [(answer.record, answer.values) for answer in done.outputs["multi_get"]]
    assert found == [(record, [record, None])]
    assert [(answer.before, answer.value) for answer in done.outputs["update"]] == [
        (record, record)
    ]
    assert [(answer.won, answer.value) for answer in done.outputs["put_if_absent"]] == [
        (False, record)
    ]
    assert [(answer.won, answer.value) for answer in done.outputs["swapped"]] == [(True, record)]


def test_plain_dicts_are_records_whose_parts_come_from_functions() -> None:
    job = sk.Job("words")
    store = job.add(sk.KVStore("kv", key=str, value=int))
    words = job.source("words", dict)
    store.put(words, key=lambda record: record["word"], value=lambda record: record["count"])
    store.get(words, key=lambda record: record["word"]).sink("found")
    done = job.run({"words": [{"word": "a", "count": 3}]})
    assert [tuple(answer) for answer in done.outputs["found"]] == [("a", 3)]


# -------------------------------------------------------------------------------- mutable values


@pytest.mark.parametrize("options", [{}, {**TIMED, "history": "1 day"}])
def test_answers_share_nothing_with_the_state_or_with_each_other(options: Any) -> None:
    kept: list[list[str]] = []

    def appended(tags: list[str] | None, payment: Payment) -> list[str]:
        tags = [] if tags is None else tags
        tags.append(str(payment.cents))
        kept.append(tags)
        return tags

    def spoiled(tags: list[str] | None, payment: Payment) -> list[str] | None:
        for each in kept:
            each.append("spoiled")
        if tags is not None:
            tags.append("spoiled")
        return None if tags is None else tags[:-1]

    declared = Declared(value=list[str], **options)
    store, payments = declared.store, declared.payments
    store.update(payments, appended, key="account").sink("appended")
    store.update(payments, spoiled, key="account", name="spoiled").sink("spoiled")
    store.put_if_absent(payments, key="account", value="names").sink("absent")
    store.get(payments, key="account").sink("found")
    first, second = Payment("a", 1), Payment("a", 2)
    done = declared.run(first, second)
    if options:
        assert [answer.value for answer in done.outputs["found"]] == [["1", "2"]] * 2
    appends = [(answer.before, answer.value) for answer in done.outputs["appended"]]
    assert appends == [(None, ["1"]), (["1"], ["1", "2"])]
    assert [(answer.before, answer.value) for answer in done.outputs["spoiled"]] == [
        (["1", "2"], ["1", "2"])
    ] * 2
    for name in ("absent", "found"):
        for answer in done.outputs[name]:
            assert answer.value == ["1", "2"]
            answer.value.append("changed")
    assert first.names == second.names == []


def test_a_value_that_was_put_is_not_the_list_of_the_record() -> None:
    declared = Declared(value=list[str])
    record = Payment("a", 1, names=["one"])
    declared.store.put(declared.payments, key="account", value="names").sink("put")
    declared.store.get(declared.payments, key="account").sink("found")
    done = declared.run(record)
    done.outputs["put"][0].value.append("two")
    assert (done.outputs["found"][0].value, record.names) == (["one"], ["one"])
