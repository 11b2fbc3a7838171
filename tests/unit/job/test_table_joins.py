"""Joins of two tables: the changes of the rows of the join."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.verify.verify import verify
from statekit.runtime import key_iteration
from statekit.testing import JobHarness, check


class Order(NamedTuple):
    id: int
    customer: int | None
    cents: int
    gone: bool = False


class Customer(NamedTuple):
    id: int
    city: str | None


class Located(NamedTuple):
    id: int
    cents: int | None
    city: str | None
    deleted: bool


class Refund(NamedTuple):
    id: int
    customer: int
    reason: str
    deleted: bool = False


def joined(**options: Any) -> sk.Job:
    """A job that joins a table of orders with one of customers."""
    job = sk.Job("shop")
    orders, customers = job.source("orders", Order), job.source("customers", Customer)
    chosen: Any = {
        "on": ("customer", "id"),
        "how": "left",
        "emit": "changes",
        "key": (["id", "customer"], "id"),
        "deletes": ("gone", "city"),
        "name": "j",
        "into": Located,
        "fields": {"id": "left.id"},
        **options,
    }
    if "emit" in options and options["emit"] is None:
        del chosen["emit"]
    orders.join(customers, **chosen).sink("out")
    return job


def test_a_row_without_a_match_is_replaced_when_one_appears_and_comes_back_after_the_last() -> None:
    harness = JobHarness(joined())
    first = harness.send(orders=[Order(1, 7, 500)])["out"]
    second = harness.send(customers=[Customer(7, "Rome")])["out"]
    third = harness.send(customers=[Customer(7, None)])["out"]
    assert first == [(1, 500, None, False)]
    assert second == [(1, 500, None, True), (1, 500, "Rome", False)]
    assert third == [(1, 500, "Rome", True), (1, 500, None, False)]


def test_an_update_of_either_side_emits_the_new_row_and_a_delete_the_old_one() -> None:
    harness = JobHarness(joined(how="inner"))
    harness.send(orders=[Order(1, 7, 500), Order(2, 7, 80)], customers=[Customer(7, "Rome")])
    of_right = harness.send(customers=[Customer(7, "Oslo")])["out"]
    of_left = harness.send(orders=[Order(1, 7, 600)])["out"]
    gone = harness.send(orders=[Order(1, 7, 0, gone=True)])["out"]
    assert sorted(of_right) == [(1, 500, "Oslo", False), (2, 80, "Oslo", False)]
    assert of_left == [(1, 600, "Oslo", False)]
    assert gone == [(1, 600, "Oslo", True)]
    assert harness.state("j", "left", 7) == {(2, 7): (7, 2, 80, False)}


def test_several_changes_of_a_row_in_an_epoch_are_one() -> None:
    harness = JobHarness(joined())
    rows = [Order(1, 7, 1), Order(1, 7, 2), Order(2, 7, 3), Order(2, 7, 3, gone=True)]
    first = harness.send(orders=rows, customers=[Customer(7, "Rome"), Customer(7, "Oslo")])
    assert first["out"] == [(1, 2, "Oslo", False)]
    there_and_back = harness.send(customers=[Customer(7, "Bonn"), Customer(7, "Oslo")])
    assert there_and_back["out"] == []


def test_none_in_on_never_matches_and_is_shown_without_a_match() -> None:
    harness = JobHarness(joined())
    first = harness.send(orders=[Order(1, None, 5)], customers=[Customer(7, "Rome")])["out"]
    second = harness.send(orders=[Order(1, None, 5, gone=True)])["out"]
    assert (first, second) == ([(1, 5, None, False)], [(1, 5, None, True)])


@pytest.mark.parametrize("shards", [1, 5])
def test_a_row_whose_foreign_key_changes_leaves_its_match_and_gets_another(shards: int) -> None:
    harness = JobHarness(joined(key="id"), shards)
    cities = [Customer(7, "Rome"), Customer(8, "Oslo")]
    first = harness.send(orders=[Order(1, 7, 5)], customers=cities)["out"]
    to_match = harness.send(orders=[Order(1, 8, 5)])["out"]
    to_none = harness.send(orders=[Order(1, 9, 5)])["out"]
    between = harness.send(orders=[Order(1, None, 5)])["out"]
    gone = harness.send(orders=[Order(1, 9, 0, gone=True)])["out"]
    assert first == [(1, 5, "Rome", False)]
    assert to_match == [(1, 5, "Rome", True), (1, 5, "Oslo", False)]
    assert to_none == [(1, 5, "Oslo", True), (1, 5, None, False)]
    assert between == [(1, 5, None, False)]
    assert gone == [(1, 5, None, True)]
    for key in (None, 7, 8, 9):
        assert harness.state("j", "left", key) == {}


def test_a_row_that_moves_and_comes_back_in_an_epoch_has_not_changed() -> None:
    harness = JobHarness(joined(key="id"))
    harness.send(orders=[Order(1, 7, 5)], customers=[Customer(7, "Rome"), Customer(8, "Oslo")])
    assert harness.send(orders=[Order(1, 8, 5), Order(1, 7, 5)])["out"] == []


@pytest.mark.parametrize("third", range(8, 12))
def test_a_row_that_comes_and_goes_elsewhere_in_parts_of_an_epoch_is_not_deleted(
    third: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part of the epoch has both changes at 7, and two parts have those at the third value."""
    monkeypatch.setattr(key_iteration, "RECORDS_AT_ONCE", 3)
    harness = JobHarness(joined(key="id"), 1)
    first = harness.send(orders=[Order(1, 7, 5)])["out"]
    moved = harness.send(orders=[*[Order(1, third, 5)] * 3, Order(1, 7, 5)])["out"]
    assert first == [(1, 5, None, False)]
    assert moved in ([], first)


def test_rows_of_both_sides_that_move_together_are_one_change() -> None:
    class Employee(NamedTuple):
        id: int
        team: str
        gone: bool = False

    class Seat(NamedTuple):
        employee: int
        seat: int
        deleted: bool

    job = sk.Job("office")
    employees, seats = job.source("employees", Employee), job.source("seats", Employee)
    fields = {"employee": "left.id", "seat": "right.id"}
    options: Any = {"key": "id", "emit": "changes", "deletes": "gone", "fields": fields}
    employees.join(seats, on="team", into=Seat, **options).sink("out")
    harness = JobHarness(job, 3)
    harness.send(employees=[Employee(1, "a"), Employee(2, "a")], seats=[Employee(9, "a")])
    moved = harness.send(employees=[Employee(1, "b")], seats=[Employee(9, "b")])["out"]
    assert sorted(moved) == [(1, 9, False), (2, 9, True)]


@pytest.mark.parametrize(("how", "is_there"), [("semi", True), ("anti", False)])
def test_left_rows_with_or_without_a_match_are_a_table(how: str, is_there: bool) -> None:
    fields = {"id": "left.id", "customer": "left.customer", "gone": "change.deleted"}
    harness = JobHarness(joined(how=how, key="id", into=Order, fields=fields))
    order = Order(1, 7, 5)
    changes = [
        harness.send(orders=[order])["out"],
        harness.send(customers=[Customer(7, "Rome")])["out"],
        harness.send(customers=[Customer(7, "Oslo")])["out"],
        harness.send(orders=[Order(1, 8, 5)])["out"],
        harness.send(orders=[order])["out"],
        harness.send(customers=[Customer(7, None)])["out"],
    ]
    there, gone, moved = [order], [order._replace(gone=True)], Order(1, 8, 5)
    if is_there:
        assert changes == [[], there, [], gone, there, gone]
    else:
        assert changes == [there, gone, [], [moved], [moved._replace(gone=True)], there]


def test_a_row_moves_to_another_key_when_the_old_one_is_deleted() -> None:
    harness = JobHarness(joined(how="inner"))
    harness.send(orders=[Order(1, 7, 5)], customers=[Customer(7, "Rome"), Customer(8, "Oslo")])
    moved = harness.send(orders=[Order(1, 7, 5, gone=True), Order(1, 8, 5)])["out"]
    assert sorted(moved, key=lambda row: not row.deleted) == [
        (1, 5, "Rome", True),
        (1, 5, "Oslo", False),
    ]


def test_the_join_of_tables_is_a_table_that_is_joined_again() -> None:
    class Full(NamedTuple):
        id: int
        city: str | None
        reason: str | None
        deleted: bool

    job = sk.Job("shop")
    orders, customers = job.source("orders", Order), job.source("customers", Customer)
    refunds = job.source("refunds", Refund)
    both = {"id": "left.id", "customer": "left.customer", "city": "city", "deleted": "deleted"}
    located = orders.join(
        customers,
        on=("customer", "id"),
        emit="changes",
        key=(["id", "customer"], "id"),
        deletes=("gone", "city"),
        fields=both,
    )
    located.join(
        refunds,
        on=["id", "customer"],
        how="left",
        emit="changes",
        key=["id", "customer"],
        deletes="deleted",
        into=Full,
    ).sink("out")
    harness = JobHarness(job)
    first = harness.send(orders=[Order(1, 7, 5)], customers=[Customer(7, "Rome")])["out"]
    second = harness.send(refunds=[Refund(1, 7, "broken")])["out"]
    third = harness.send(orders=[Order(1, 7, 5, gone=True)])["out"]
    assert first == [(1, "Rome", None, False)]
    assert second == [(1, "Rome", None, True), (1, "Rome", "broken", False)]
    assert third == [(1, "Rome", "broken", True)]


def test_it_continues_from_a_checkpoint_and_counts_its_rows(tmp_path: Path) -> None:
    orders = [Order(1, 7, 5), Order(2, None, 6), Order(1, 7, 5, gone=True)]
    customers = [Customer(7, "Rome"), Customer(7, "Oslo")]
    found: list[Any] = []
    for count in range(1, 4):
        records: dict[str, list[Any]] = {
            "orders": orders[:count],
            "customers": customers[: count - 1],
        }
        found += joined().run(records, checkpoint=tmp_path / "c", drain=False)["out"]
        repository = Repository(tmp_path / "c")
        assert verify(repository).is_intact
    rows = repository.manifest(repository.epochs()[-1]).operators["j"].rows
    assert rows == {"left": 1, "right": 1}
    expected = [
        (1, 5, None, False),
        (1, 5, None, True),
        (1, 5, "Rome", False),
        (1, 5, "Rome", True),
        (2, 6, None, False),
    ]
    assert sorted(map(tuple, found), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emit": "all"}, 'emit=\'all\': use "matches" or "changes"'),
        ({"emit": None}, 'key= and deletes= is for tables: give emit="changes"'),
        ({"how": "semi", "into": None}, 'how="semi" with emit="changes": give into= a record'),
        ({"how": "anti"}, r"emits rows of the left side alone, and city would be of Customer"),
        ({"within": "1 hour", "ttl": sk.TTL("1 hour")}, "within= and ttl= with emit="),
        ({"into": lambda order, customer: 1}, "give a record class, in which a field says"),
        ({"into": None, "fields": {"city": "city"}}, "no field of the results is true for"),
        ({"key": None}, "give the key of the rows of each table"),
        ({"key": ("id", "id", "id")}, "give the key of the rows of each table"),
        ({"key": (["id", "customer", "x"], "id")}, "'x' is not a field of Order"),
        ({"deletes": ("cents", "city")}, "give a field that is a bool, or that may be None"),
        ({"deletes": 5}, "deletes=5: give a field of both sides, or a pair"),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_declared(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        joined(**options)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["left", "full", "semi"])
@pytest.mark.parametrize("key", ["id", (["id", "customer"], "id")])
def test_check_proves_a_job_with_a_join_of_tables(how: str, key: Any) -> None:
    options: Any = {"how": how, "key": key, "into": None}
    options["fields"] = {name: name for name in ("cents", "city", "deleted")} | {"order": "left.id"}
    if how == "semi":
        options |= {"into": Order, "fields": {"id": "left.id", "gone": "change.deleted"}}
    job = joined(**options)
    check(job, examples=20, excused={"growth": "rows of a table stay until they are deleted"})
