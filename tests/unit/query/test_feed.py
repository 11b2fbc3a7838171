"""The change feed: kinds of epochs, named readers, and errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.functions.process import Process


class Move(NamedTuple):
    account: int
    cents: int


Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]


@sk.process(key="account")
def accounts(move: Move, total: Total, moves: sk.ListState[int]) -> None:
    total.add(move.cents)
    moves.append(move.cents)
    if move.cents % 10 == 9:
        moves.clear()


@sk.process(key="account")
def with_a_new_state(
    move: Move, total: Total, moves: sk.ListState[int], last: sk.ValueState[int]
) -> None:
    last.update(move.cents)


def run(home: Path, count: int, declared: Process[Any, Any, Any] = accounts) -> None:
    """Run the job over the first records, four per epoch; it continues from its checkpoint."""
    job = sk.Job("bank", key_groups=8)
    job.source("moves", Move).process(declared, name="accounts")
    job.run(
        {"moves": [Move(number % 3, number) for number in range(count)]},
        checkpoint=home,
        epoch_size=4,
        retention=None,
        allow_dropped_state=True,
    )


def collect(home: Path, epochs: int) -> None:
    Collector(Repository(home), sk.Retention(epochs=epochs)).collect(sweep=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    run(tmp_path / "c", 16)
    return tmp_path / "c"


def kinds(feed: sk.Feed) -> list[tuple[int, str]]:
    return [(epoch.epoch, epoch.kind) for epoch in feed]


def test_the_first_epoch_is_a_snapshot_and_later_ones_are_changes(home: Path) -> None:
    assert kinds(sk.feed(home, "accounts", "total")) == [
        (0, "snapshot"),
        (1, "changes"),
        (2, "changes"),
        (3, "changes"),
    ]
    assert kinds(sk.feed(home, "accounts", "total", after=1, until=2)) == [(2, "changes")]
    assert kinds(sk.feed(home, "accounts", "total", after=3)) == []


def test_a_feed_continues_where_it_was_when_more_epochs_are_committed(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=2)
    assert kinds(feed) == [(3, "changes")]
    run(home, 20)
    assert kinds(feed) == [(4, "changes")]


def test_a_cleared_list_is_one_change_before_its_new_elements(home: Path) -> None:
    (_, _, epoch, _) = sk.feed(home, "accounts", "moves")
    changes = [(change.op, change.key, change.value) for change in epoch]
    assert changes[0] == ("clear", 0, None)  # 9 cleared the list of account 0
    assert sorted(changes[1:]) == [("upsert", 1, 10), ("upsert", 2, 8), ("upsert", 2, 11)]
    assert [*epoch] == [*epoch], "each iteration reads the changes anew"


def test_a_resolved_feed_has_the_rows_that_were_cleared_with_their_values(home: Path) -> None:
    with sk.feed(home, "accounts", "moves", after=1, until=2, before=True) as feed:
        (epoch,) = feed
        rows = sorted(
            (change.op, change.key, change.before, change.value)
            for change in epoch
            if change.key == 0
        )
        assert [(op, before) for op, _, before, _ in rows] == [
            ("delete", 0),
            ("delete", 3),
            ("delete", 6),
        ]


def test_a_rollback_is_a_difference(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=3)
    plan(Repository(home), 1).carry_out()
    ((epoch, changes),) = [(epoch, list(epoch)) for epoch in feed]
    assert (epoch.kind, epoch.cause) == ("difference", "rollback")
    totals = {key: sum(range(key, 8, 3)) for key in range(3)}
    assert {change.key: change.value for change in changes} == totals


def test_a_new_state_begins_with_the_first_epoch_that_has_it(home: Path) -> None:
    run(home, 24, with_a_new_state)
    for after in (None, 1, 3):
        feed = sk.feed(home, "accounts", "last", after=after)
        assert kinds(feed) == [(4, "snapshot"), (5, "changes")]


def test_a_state_that_was_dropped_is_an_error_where_it_ends(home: Path) -> None:
    run(home, 20, with_a_new_state)
    feed = sk.feed(home, "accounts", "last", after=4)
    run(home, 24, accounts)
    with pytest.raises(sk.QueryError, match="has no state 'last': it has total, moves"):
        list(feed)
    with pytest.raises(sk.QueryError, match="has no state 'last'"):
        sk.feed(home, "accounts", "last")


def test_a_collected_epoch_is_an_error_that_says_how_to_go_on(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=0)
    collect(home, 1)
    for _ in range(2):
        with pytest.raises(sk.QueryError, match=r"collected: the epochs 3 to 3 are kept.*resynchr"):
            next(iter(feed))
    with pytest.raises(sk.QueryError, match="resynchronise"):
        sk.feed(home, "accounts", "total", after=0)
    assert kinds(sk.feed(home, "accounts", "total")) == [(3, "snapshot")]


def test_a_named_reader_keeps_its_epochs_until_it_commits_later_ones(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror")
    collect(home, 1)
    assert Repository(home).epochs() == [1, 2, 3]
    (two, three) = feed
    feed.commit(two.epoch)
    collect(home, 1)
    assert Repository(home).epochs() == [2, 3]
    assert list(three)
    feed.commit()
    collect(home, 1)
    assert Repository(home).epochs() == [3]


def test_only_returned_epochs_of_a_named_reader_are_committed(home: Path) -> None:
    with pytest.raises(sk.QueryError, match="pass reader=NAME"):
        sk.feed(home, "accounts", "total", after=1).commit()
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror")
    with pytest.raises(sk.QueryError, match="epoch 2 cannot be committed"):
        feed.commit(2)


def test_a_checkpoint_that_was_replaced_is_an_error(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "backup")
    run(home, 20)
    feed = sk.feed(home, "accounts", "total", after=4)
    shutil.rmtree(home)
    (tmp_path / "backup").rename(home)
    with pytest.raises(sk.QueryError, match="was replaced"):
        list(feed)
    run(home, 24, with_a_new_state)
    with pytest.raises(sk.QueryError, match="was replaced"):
        list(feed)


def test_epochs_that_do_not_exist_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(sk.QueryError, match="has epochs up to 3, and not epoch 7"):
        sk.feed(home, "accounts", "total", after=7)
    with pytest.raises(sk.QueryError, match="has no operator 'sales'"):
        sk.feed(home, "sales", "total", after=1)
    with pytest.raises(sk.RestoreError):
        sk.feed(tmp_path / "nothing", "accounts", "total")
    Repository(tmp_path / "empty")
    assert kinds(sk.feed(tmp_path / "empty", "accounts", "total")) == []
    with pytest.raises(sk.QueryError, match="has no committed epoch for reader 'mirror'"):
        sk.feed(tmp_path / "empty", "accounts", "total", reader="mirror")
