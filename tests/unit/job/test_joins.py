"""Joins of two streams: their results, by kind and by what arrives when."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateTypeError
from statekit.maintenance.verify.verify import verify
from statekit.testing import JobHarness, check

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


class Order(NamedTuple):
    order: int | None
    cents: int
    at: dt.datetime


class Payment(NamedTuple):
    order: int | None
    method: str
    paid: dt.datetime


class Paid(NamedTuple):
    order: int | None
    cents: int
    method: str


class Seen(NamedTuple):
    cents: int | None
    method: str | None


class Auction(NamedTuple):
    id: int
    at: dt.datetime
    ends: dt.datetime
    opens: dt.datetime | None = None


class Bid(NamedTuple):
    auction: int
    cents: int
    at: dt.datetime


class Timed(NamedTuple):
    order: int | None
    at: dt.datetime
    method: str | None


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


def joined(name: str = "j", **options: Any) -> sk.Job:
    """A job that joins orders with payments."""
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    timed = {"event_time": ("at", "paid")} if {"within", "window"} & options.keys() else {}
    chosen: Any = {"on": "order", "name": name, **timed, **options}
    orders.join(payments, **chosen).sink("out")
    return job


def results(
    options: dict[str, Any], orders: Sequence[Order], payments: Sequence[Payment]
) -> list[tuple[Any, ...]]:
    """The results of one epoch and of the end of event time, as tuples without times."""
    harness = JobHarness(joined(**options))
    found = harness.send(orders=orders, payments=payments)["out"]
    return [tuple(each) for each in (*found, *harness.drain()["out"])]


# ---------------------------------------------------------------------------------------- matches


@pytest.mark.parametrize(
    ("within", "matching"),
    [
        ("5 minutes", [-5, 0, 5]),
        (("0 minutes", "10 minutes"), [0, 5, 10]),
        ((dt.timedelta(minutes=-5), dt.timedelta(minutes=10)), [5, 10]),
        ((dt.timedelta(minutes=10), dt.timedelta(minutes=-1)), [-10, -5]),
        (dt.timedelta(0), [0]),
    ],
)
def test_a_right_record_matches_at_both_ends_of_the_interval_and_not_behind_them(
    within: Any, matching: list[int]
) -> None:
    minutes = [-11, -10, -5, 0, 5, 10, 11]
    payments = [Payment(1, f"{n}", at(n)) for n in minutes]
    options = {"within": within, "into": Seen}
    assert results(options, [Order(1, 7, NOON)], payments) == [(7, f"{n}") for n in matching]


def auctions_with_bids(within: Any, how: Any = "left") -> sk.Job:
    """A job that joins auctions with the bids until they end."""
    job = sk.Job("auctions")
    auctions, bids = job.source("auctions", Auction), job.source("bids", Bid)
    fields = {} if how == "semi" else {"id": "id", "cents": "cents"}
    on = ("id", "auction")
    auctions.join(
        bids, on=on, how=how, within=within, event_time="at", fields=fields, name="j"
    ).sink("out")
    return job


def test_an_interval_may_end_at_a_field_of_the_left_record() -> None:
    harness = JobHarness(auctions_with_bids(("1 minute", "ends")))
    early = [Bid(1, n, at(n)) for n in (-2, -1, 0)]
    assert harness.send(bids=early)["out"] == []
    auctions = [Auction(1, at(0), at(5)), Auction(1, at(1), at(3)), Auction(1, at(0), at(-9))]
    assert harness.send(auctions=auctions)["out"] == [(1, -1), (1, 0), (1, 0)]
    found = harness.send(bids=[Bid(1, n, at(n)) for n in (3, 4, 5, 6)])["out"]
    no_bid = (1, None)  # of the auction that ended before it began
    assert found == [(1, 3), (1, 3), (1, 4), (1, 5), no_bid]
    assert harness.drain()["out"] == []
    assert harness.state("j", "left", 1) == harness.state("j", "right", 1) == {}


def test_a_bid_is_kept_only_as_long_as_an_auction_may_begin_before_it() -> None:
    harness = JobHarness(auctions_with_bids(("1 minute", "ends"), "inner"))
    harness.send(auctions=[Auction(2, at(0), at(99))], bids=[Bid(1, 1, at(0)), Bid(1, 2, at(50))])
    harness.send(auctions=[Auction(3, at(50), at(99))], bids=[Bid(2, 3, at(50))])
    harness.advance_watermark(at(50.5))
    kept = [harness.state("j", "right", auction).values() for auction in (1, 2)]
    assert [[bid.cents for bid in bids] for bids in kept] == [[2], [3]]
    assert harness.state("j", "left", 2), "an auction is kept until it ends"


@pytest.mark.parametrize(
    ("within", "message"),
    [
        (("0 s", "opens"), "ends at a field that is a datetime"),
        (("0 s", "id"), "'id' is int: an interval ends at a field that is a datetime"),
        (("0 s", "end"), r"a field of the left side .* \(it has id, at, ends, opens\)"),
        ("ends", "a field of the left side with the end"),
    ],
)
def test_an_end_that_is_no_time_of_the_left_record_is_refused(within: Any, message: str) -> None:
    with pytest.raises(StateTypeError, match=message):
        auctions_with_bids(within)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(1, "card")]),
        ("left", [(1, "card"), (2, None), (3, None)]),
        ("right", [(1, "card"), (None, "cash"), (None, "lost")]),
        ("full", [(1, "card"), (2, None), (3, None), (None, "cash"), (None, "lost")]),
    ],
)
def test_rows_without_a_match_are_emitted_by_how_and_none_never_matches(
    how: str, expected: list[Any]
) -> None:
    orders = [Order(1, 1, NOON), Order(2, 2, NOON), Order(None, 3, NOON)]
    payments = [Payment(1, "card", NOON), Payment(9, "cash", NOON), Payment(None, "lost", NOON)]
    options = {"within": "1 minute", "how": how, "into": Seen}
    if how == "inner":
        options["fields"] = {}
    found = results(options, orders, payments)
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_a_semi_join_emits_each_left_record_once_and_an_anti_join_all_others() -> None:
    orders = [Order(1, 1, NOON), Order(1, 2, NOON), Order(2, 3, NOON), Order(None, 4, NOON)]
    payments = [Payment(1, "card", NOON), Payment(1, "cash", NOON)]
    found = {
        how: [order[1] for order in results({"within": "1 minute", "how": how}, orders, payments)]
        for how in ("semi", "anti")
    }
    assert found["semi"] == [1, 2]
    assert sorted(found["anti"]) == [3, 4]


def test_duplicates_and_equal_times_match_each() -> None:
    order, payment = Order(1, 1, NOON), Payment(1, "card", NOON)
    found = results({"within": "1 minute", "into": Seen}, [order, order], [payment] * 3)
    assert found == [(1, "card")] * 6


def test_results_of_a_key_are_in_order_of_the_later_record_then_of_the_time_of_the_other() -> None:
    harness = JobHarness(joined(within="1 hour", into=Seen, lateness="1 hour"))
    harness.send(payments=[Payment(1, "b", at(2)), Payment(1, "a", at(1))])
    found = harness.send(
        orders=[Order(1, 2, at(9)), Order(1, 1, at(0))], payments=[Payment(1, "c", at(0))]
    )
    assert found["out"] == [(2, "a"), (2, "b"), (1, "a"), (1, "b"), (1, "c"), (2, "c")]


# ------------------------------------------------------------------------------------------- time


def test_a_match_is_emitted_at_once_and_a_row_without_one_when_the_watermark_passes() -> None:
    harness = JobHarness(joined(within="10 minutes", how="left", into=Seen))
    first = harness.send(orders=[Order(1, 1, at(0)), Order(2, 2, at(0))])
    second = harness.send(payments=[Payment(1, "card", at(9))], orders=[Order(3, 3, at(9))])
    assert (first["out"], second["out"]) == ([], [(1, "card")])
    just_before = at(10) - dt.datetime.resolution
    assert harness.advance_watermark(just_before)["out"] == []
    assert harness.advance_watermark(at(10))["out"] == [(2, None)]
    assert harness.state("j", "left", 2) == {}
    assert harness.state("j", "left", 3) != {}


def test_a_late_record_is_in_the_late_stream_and_never_joined() -> None:
    job = joined(within="1 hour", into=Seen)
    harness = JobHarness(job)
    harness.send(orders=[Order(1, 1, at(60))], payments=[Payment(1, "card", at(60))])
    found = harness.send(orders=[Order(1, 2, at(59))], payments=[Payment(1, "cash", at(61))])
    assert found["out"] == [(1, "cash")]


def test_state_ends_with_time_and_leaves_no_timer() -> None:
    harness = JobHarness(joined(within="1 minute", into=Seen))
    for minute in range(20):
        harness.send(
            orders=[Order(minute, 1, at(minute))], payments=[Payment(minute, "card", at(minute))]
        )
    harness.advance_watermark(at(60))
    for minute in range(20):
        assert harness.state("j", "left", minute) == harness.state("j", "right", minute) == {}
        assert harness.timers("j", minute) == []


def test_the_next_operator_waits_for_rows_that_come_late_out_of_a_join() -> None:
    """One record per epoch: unmatched rows are emitted an hour of event time later."""
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    both = orders.join(
        payments, on="order", how="left", within="1 hour", event_time=("at", "paid"), into=Timed
    )
    hours = both.window(sk.tumbling("1 hour"), key="order", event_time="at").count()
    hours.sink("out")
    hours.late.sink("late")
    records = [Order(n % 3, n, at(10 * n)) for n in range(40)]
    run = job.run({"orders": records, "payments": []}, epoch_size=1, drain=True)
    found: Any = run["out"]
    assert (sum(hour.count for hour in found), run["late"]) == (40, [])


def test_a_timer_that_both_sides_set_is_counted_once(tmp_path: Any) -> None:
    job = joined(within="1 hour", how="full", into=Seen)
    records: Any = {"orders": [Order(1, 1, NOON)], "payments": [Payment(1, "card", NOON)]}
    job.run(records, checkpoint=tmp_path / "c", drain=False)
    found = verify(Repository(tmp_path / "c"))
    assert found.is_intact, found


# ---------------------------------------------------------------------------------------- windows


def test_records_of_one_window_match_and_a_result_may_have_its_start_and_end() -> None:
    class Windowed(NamedTuple):
        cents: int
        method: str
        start: dt.datetime
        end: dt.datetime

    options = {"window": sk.tumbling("10 minutes"), "into": Windowed}
    orders = [Order(1, 1, at(9)), Order(1, 2, at(10))]
    payments = [Payment(1, "card", at(0)), Payment(1, "cash", at(19))]
    found = results(options, orders, payments)
    assert found == [(1, "card", at(0), at(10)), (2, "cash", at(10), at(20))]


def test_records_match_once_in_each_sliding_window_that_has_both() -> None:
    options = {"window": sk.sliding("10 minutes", "5 minutes"), "into": Seen}
    found = results(options, [Order(1, 1, at(7))], [Payment(1, "card", at(8))])
    assert found == [(1, "card")] * 2


def test_a_day_of_a_join_has_23_hours_when_the_clock_is_put_forward() -> None:
    midnight = dt.datetime(2026, 3, 28, 23, tzinfo=dt.UTC)  # of the 29th in Berlin
    payments = [
        Payment(1, "in", midnight + dt.timedelta(hours=23, microseconds=-1)),
        Payment(1, "out", midnight + dt.timedelta(hours=23)),
    ]
    options = {"window": sk.tumbling("1 day", zone="Europe/Berlin"), "into": Seen}
    assert results(options, [Order(1, 1, midnight)], payments) == [(1, "in")]


# ------------------------------------------------------------------------------- joins of others


def test_a_join_without_an_end_finds_a_record_of_any_earlier_epoch() -> None:
    harness = JobHarness(joined(into=Seen))
    harness.send(orders=[Order(1, 1, NOON)])
    harness.send(orders=[Order(1, 2, at(1))])
    assert harness.send(payments=[Payment(1, "card", at(9))])["out"] == [(1, "card"), (2, "card")]


def test_a_record_with_a_ttl_matches_until_so_long_after_it_arrived() -> None:
    harness = JobHarness(joined(into=Seen, ttl=sk.TTL("10 minutes")), backend="rocksdb")
    began = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    harness.send(orders=[Order(1, 1, NOON)])
    harness.advance_processing_time(began + dt.timedelta(minutes=10) - dt.datetime.resolution)
    assert harness.send(payments=[Payment(1, "in time", NOON)])["out"] == [(1, "in time")]
    harness.advance_processing_time(began + dt.timedelta(minutes=10))
    late = harness.send(payments=[Payment(1, "too late", NOON)], orders=[Order(1, 2, NOON)])
    assert late["out"] == [(2, "in time"), (2, "too late")]
    assert [row.cents for row in harness.state("j", "left", 1).values()] == [2]
    harness.advance_processing_time(began + dt.timedelta(minutes=30))
    assert harness.state("j", "left", 1) == harness.state("j", "right", 1) == {}


def test_expired_records_are_removed_and_matched_ones_of_a_semi_join_before(tmp_path: Any) -> None:
    orders = [Order(n, 1, NOON) for n in range(20)]
    payments = [Payment(n, "card", NOON) for n in range(10)]

    def rows_after(minute: int, count: int) -> list[int]:
        joined(how="semi", ttl=sk.TTL("10 minutes")).run(
            {"orders": orders, "payments": payments[:count]},
            checkpoint=tmp_path / "c",
            clock=lambda: minute * 60_000_000,
            drain=False,
        )
        repository = Repository(tmp_path / "c")
        found = verify(repository)
        assert found.is_intact, found
        rows = repository.manifest(repository.epochs()[-1]).operators["j"].rows
        return [rows.get(side, 0) for side in ("left", "right")]

    assert rows_after(0, 0) == [20, 0]
    assert rows_after(5, 9) == [11, 9]
    assert rows_after(15, 10) == [0, 1]  # an epoch of a new payment


@pytest.mark.parametrize("turned_on", [True, False])
def test_a_ttl_may_be_turned_on_and_off(turned_on: bool, tmp_path: Any) -> None:
    def run(ttl: sk.TTL | None, minute: int, **records: list[Any]) -> list[Any]:
        done = joined(into=Seen, ttl=ttl).run(
            {"orders": orders, "payments": payments[: records["so_far"][0]]},
            checkpoint=tmp_path / "c",
            clock=lambda: minute * 60_000_000,
            drain=False,
        )
        return list(done["out"])

    orders = [Order(1, 1, NOON)]
    payments = [Payment(1, f"{n}", NOON) for n in range(3)]
    before, after = (None, sk.TTL("10 minutes")) if turned_on else (sk.TTL("10 minutes"), None)
    run(before, 0, so_far=[0])
    assert run(after, 5, so_far=[1]) == [(1, "0")]
    assert run(after, 14, so_far=[2]) == [(1, "1")]
    assert run(after, 15, so_far=[3]) == ([] if turned_on else [(1, "2")])


def test_a_stream_is_joined_with_itself() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    both = {"earlier": "left.cents", "later": "right.cents"}
    after = (dt.timedelta(minutes=-1), dt.timedelta(minutes=5))
    orders.join(orders, on="order", within=after, event_time="at", fields=both, name="j").sink(
        "out"
    )
    run = job.run({"orders": [Order(1, 1, at(0)), Order(1, 2, at(5)), Order(1, 3, at(6))]})
    found: Any = run["out"]
    assert sorted((of.earlier, of.later) for of in found) == [(1, 2), (2, 3)]


def test_three_streams_are_joined_one_after_the_other() -> None:
    class Sent(NamedTuple):
        order: int
        parcel: str
        sent: dt.datetime

    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    sent = job.source("sent", Sent)
    paid = orders.join(payments, on="order", within="1 hour", event_time=("at", "paid"))
    done = paid.join(sent, on="order", within="1 hour", event_time=("paid", "sent"))
    done.sink("out")
    inputs: dict[str, list[Any]] = {
        "orders": [Order(1, 5, NOON)],
        "payments": [Payment(1, "card", at(1))],
        "sent": [Sent(1, "p1", at(2))],
    }
    found: Any = job.run(inputs, drain=True)["out"]
    assert [(of.order, of.cents, of.method, of.parcel) for of in found] == [(1, 5, "card", "p1")]


def test_the_results_of_windows_are_joined() -> None:
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    hours = orders.window(sk.tumbling("1 hour"), key="order", event_time="at").sum("cents")
    hours.join(
        payments, on="order", event_time=("start", "paid"), within=("0 hours", "1 hour"), into=Paid
    ).sink("out")
    run = job.run(
        {
            "orders": [Order(1, 5, NOON), Order(1, 6, at(1))],
            "payments": [Payment(1, "card", at(30))],
        },
        drain=True,
    )
    assert run["out"] == [Paid(1, 11, "card")]


# ----------------------------------------------------------------------------------- declarations


def test_a_function_makes_the_results_of_both_records() -> None:
    def told(order: Order, payment: Payment | None) -> str:
        return f"{order.cents} by {payment.method if payment else 'nothing'}"

    harness = JobHarness(joined(within="1 minute", how="left", into=told))
    found = harness.send(
        orders=[Order(1, 5, NOON), Order(2, 6, NOON)], payments=[Payment(1, "card", NOON)]
    )["out"]
    assert found + harness.drain()["out"] == ["5 by card", "6 by nothing"]


def test_a_field_of_the_result_that_no_side_has_gets_its_default() -> None:
    class Noted(NamedTuple):
        cents: int
        method: str
        note: str = "new"

    options = {"within": "1 minute", "into": Noted}
    found = results(options, [Order(1, 5, NOON)], [Payment(1, "card", NOON)])
    assert found == [(5, "card", "new")]


def test_an_error_of_that_function_names_the_key() -> None:
    def failing(order: Order, payment: Payment) -> int:
        return 1 // (order.cents - 6)

    harness = JobHarness(joined(within="1 minute", into=failing))
    with pytest.raises(sk.ProcessError, match=r"at key 2 in epoch 0 with ZeroDivisionError"):
        harness.send(
            orders=[Order(n, n + 4, NOON) for n in range(5)],
            payments=[Payment(n, "card", NOON) for n in range(5)],
        )


def test_a_key_may_be_an_expression() -> None:
    class Parcel(NamedTuple):
        code: str

    job = sk.Job("shop")
    orders, parcels = job.source("orders", Order), job.source("parcels", Parcel)
    orders.join(parcels, on=(sk.expr("CAST(cents AS VARCHAR)"), "code")).sink("out")
    run = job.run({"orders": [Order(1, 5, NOON)], "parcels": [Parcel("5"), Parcel("6")]})
    found: Any = run["out"]
    assert [(of.order, of.code) for of in found] == [(1, "5")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "outer"}, "how='outer': use one of inner, left, right, full, semi, anti"),
        ({"how": "left"}, 'how="left" emits rows without a match when no match can follow'),
        ({"within": "1 hour", "window": sk.tumbling("1 hour")}, "within= or window=, not both"),
        ({"window": sk.session("1 hour")}, "the windows of both sides must be the same"),
        ({"within": ("1 h", dt.timedelta(hours=-2))}, "the interval ends before it begins"),
        ({"within": "soon"}, "within='soon': give a timedelta or a text"),
        ({"within": "1 h", "how": "left", "into": Paid}, r"its field 'method' is str, and gets"),
        ({"into": Paid, "fields": {"method": "right.way"}}, "'way' is not a field of Payment"),
        ({"into": Paid, "how": "semi"}, "emits rows of the left side alone, and method would be"),
        ({"into": lambda order, payment: 1}, "the type of its results is not known"),
        ({"into": 5}, "into=5: give a record class, or a function of two records"),
        ({"until": 5}, "has no option until: it has how, into, on, within"),
        ({"within": ("1 h",) * 3}, "give a duration, or a pair: how far before and how far after"),
        ({"within": dt.timedelta.max}, "give a duration from 0 to 9998 years"),
        ({"fields": ["cents"]}, r"fields=\['cents'\]: give a mapping"),
        ({"into": partial(max, 1)}, "give a record class, or a function of two records"),
        ({"event_time": ("at", "paid")}, "event_time= is for within= or window="),
        ({"ttl": "30 days"}, r'ttl=.30 days.: give a TTL, as in ttl=sk.TTL\("30 days"\)'),
        ({"ttl": sk.TTL("1 h"), "within": "1 h"}, "ttl= has no effect with within= or window="),
        ({"ttl": sk.TTL("1 h", clock="event")}, "a join without an end has no event time"),
        ({"ttl": sk.TTL("1 h", refresh="read")}, "a match does not restart the TTL of a record"),
        ({"ttl": sk.TTL("1 h"), "how": "left"}, 'how="left" emits rows without a match when no'),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_declared(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        joined(**options)


def test_a_function_that_yields_results_is_refused() -> None:
    def some(order: Order, payment: Payment) -> Iterator[int]:
        yield 1

    with pytest.raises(sk.StateTypeError, match="a pair has one result: return a list, and use"):
        joined(into=some)


def test_a_field_of_a_side_that_is_called_as_one_of_the_window_has_to_be_chosen() -> None:
    class Shift(NamedTuple):
        order: int
        start: int
        at: dt.datetime

    job = sk.Job("shop")
    shifts, payments = job.source("shifts", Shift), job.source("payments", Payment)
    options: Any = {"on": "order", "window": sk.tumbling("1 hour"), "event_time": ("at", "paid")}
    with pytest.raises(sk.StateTypeError, match="'start' is a field of a side and of the window"):
        shifts.join(payments, **options, fields={"start": "start"})
    both = {"shift": "left.start", "hour": "window.start"}
    shifts.join(payments, **options, fields=both).sink("out")
    records: dict[str, list[Any]] = {
        "shifts": [Shift(1, 42, at(5))],
        "payments": [Payment(1, "card", at(6))],
    }
    found: Any = job.run(records)["out"]
    assert [tuple(each) for each in found] == [(42, NOON)]


def test_fields_may_have_names_that_a_namedtuple_refuses() -> None:
    @dataclasses.dataclass(frozen=True)
    class Private:
        _order: int
        _cents: int

    job = sk.Job("shop")
    private, payments = job.source("private", Private), job.source("payments", Payment)
    private.join(
        payments, on=("_order", "order"), fields={"cents": "_cents", "method": "method"}
    ).sink("out")
    records: dict[str, list[Any]] = {
        "private": [Private(1, 5)],
        "payments": [Payment(1, "card", NOON)],
    }
    found: Any = job.run(records)["out"]
    assert [tuple(each) for each in found] == [(5, "card")]


def test_a_result_may_be_renamed_between_runs(tmp_path: Any) -> None:
    order, payment = Order(1, 5, NOON), Payment(1, "card", NOON)
    for number, name in enumerate(("cents", "price")):
        job = joined(fields={name: "cents", "method": "method"})
        records: dict[str, list[Any]] = {"orders": [order], "payments": [payment][:number]}
        found: Any = job.run(records, checkpoint=tmp_path / "c", drain=False)["out"]
    assert [tuple(each) for each in found] == [(5, "card")]


def test_keys_of_different_types_and_fields_of_both_sides_are_refused() -> None:
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    with pytest.raises(sk.StateTypeError, match="cents of Order is int, and method of Payment"):
        orders.join(payments, on=("cents", "method"))
    with pytest.raises(sk.StateTypeError, match="'cents' is a field of Order and of Order: say"):
        orders.join(orders, on="order")
    with pytest.raises(sk.StateTypeError, match="within= and window= are of event time"):
        orders.join(payments, on="order", within="1 hour")


def test_another_interval_does_not_continue_with_the_state(tmp_path: Any) -> None:
    order, payment = Order(1, 1, NOON), Payment(1, "card", NOON)
    first = joined(within="1 hour", into=Seen)
    first.run({"orders": [order], "payments": [payment]}, checkpoint=tmp_path / "c")
    with pytest.raises(sk.StatekitError, match="within"):
        joined(within="2 hours", into=Seen).run(
            {"orders": [order], "payments": [payment]}, checkpoint=tmp_path / "c"
        )


class Rated(NamedTuple):
    order: int
    at: dt.datetime
    method: str = "unknown"
    stars: int = 0


class Stars(NamedTuple):
    cents: int | None
    stars: int | None


class Methods(NamedTuple):
    cents: int | None
    stars: int | None
    method: str | None


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_result_gets_another_field_that_kept_rows_have_with_its_default(
    how: Any, tmp_path: Path
) -> None:
    def found(into: Any, orders: int, ratings: int) -> list[Any]:
        job = sk.Job("shop")
        left, right = job.source("orders", Order), job.source("ratings", Rated)
        left.join(right, on="order", within="1 hour", event_time="at", how=how, into=into).sink(
            "out"
        )
        outputs: list[Any] = []
        job.run(
            {
                "orders": [Order(1, cents, NOON + MINUTE * cents) for cents in range(orders)],
                "ratings": [
                    Rated(1, NOON + MINUTE * (n + 1), "card", n + 1) for n in range(ratings)
                ],
            },
            checkpoint=tmp_path,
            outputs={"out": lambda records, epoch: outputs.extend(records)},
            drain=False,
        )
        return outputs

    assert found(Stars, 2, 1) == [Stars(0, 1), Stars(1, 1)]
    assert sorted(found(Methods, 3, 2)) == [
        Methods(0, 2, "card"),
        Methods(1, 2, "card"),
        Methods(2, 1, "unknown"),
        Methods(2, 2, "card"),
    ]


def test_a_result_gets_no_other_field_without_a_default(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"orders": [Order(1, 1, NOON)], "payments": [Payment(1, "card", NOON)]}
    joined(within="1 hour", fields={"cents": "left.cents"}).run(rows, checkpoint=tmp_path)
    with pytest.raises(sk.StateSchemaError, match="method is new and has no default"):
        joined(within="1 hour", into=Seen).run(rows, checkpoint=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "semi"])
def test_check_proves_a_job_with_a_join_with_a_ttl(how: str) -> None:
    check(joined(how=how, ttl=sk.TTL("1 minute")), examples=20)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "semi"])
def test_check_proves_a_join_until_a_field(how: str) -> None:
    check(auctions_with_bids(("1 minute", "ends"), how), examples=20)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "semi"])
def test_check_proves_a_job_with_a_join(how: str) -> None:
    check(joined(within=("1 minute", "2 minutes"), how=how), examples=20)
