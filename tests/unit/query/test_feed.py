"""The change feed: kinds of epochs, named readers, and errors."""

from __future__ import annotations

import shutil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.clock import sleep_s, stopwatch_s
from statekit.functions.process import Process
from tests.support import killable_processes
from tests.support.timeouts import PATIENCE_S


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


class Day(NamedTuple):
    month: int
    day: int


class Sale(NamedTuple):
    shop: str
    hall: int
    day: Day
    cents: int


@sk.process(key=("shop", "hall"))
def sales(sale: Sale, by_day: sk.MapState[Day, int], total: Total) -> None:
    by_day[sale.day] = sale.cents
    total.add(sale.cents)


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


@pytest.mark.parametrize("follow", [False, True])
def test_an_epoch_that_is_collected_while_the_feed_reads_is_an_error(
    home: Path, follow: bool
) -> None:
    epochs = iter(sk.feed(home, "accounts", "total", after=0, follow=follow, poll="1 ms"))
    assert next(epochs).epoch == 1
    collect(home, 1)
    with pytest.raises(sk.QueryError, match="was collected"):
        next(epochs)


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


def test_a_reader_that_was_closed_starts_again_at_once_and_finds_its_epochs(home: Path) -> None:
    with sk.feed(home, "accounts", "total", after=1, reader="mirror") as feed:
        assert next(iter(feed)).epoch == 2
        feed.commit()
    assert killable_processes.exit_code(collect_and_follow, home, 2) == 0
    assert killable_processes.exit_code(collect_and_follow, home, 2) == 0, "not by exit alone"


def collect_and_follow(home: Path, after: int) -> None:
    collect(home, 1)
    assert kinds(sk.feed(home, "accounts", "total", after=after, reader="mirror")) == [
        (3, "changes")
    ]


def test_a_reader_that_was_killed_starts_again_at_once_and_finds_its_epochs(home: Path) -> None:
    assert killable_processes.exit_code(follow_and_die, home) == -9
    collect_and_follow(home, 2)


def follow_and_die(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror")
    for _ in feed:
        feed.commit()
        killable_processes.die()


def test_a_run_with_the_token_of_the_reader_fences_the_run_before_and_others_are_refused(
    home: Path,
) -> None:
    ours, theirs = killable_processes.pipe()
    other = killable_processes.start(follow_with_token, home, theirs)
    assert ours.recv() == "open"
    options: dict[str, Any] = {"after": 1, "reader": "mirror"}
    with pytest.raises(sk.FencedError, match=r"reader 'mirror' of .* is process .*same token="):
        sk.feed(home, "accounts", "total", **options)
    with sk.feed(home, "accounts", "total", **options, token="ours") as feed:
        assert len(kinds(feed)) == 2
        ours.send("go on")
        assert ours.recv() == "FencedError"
        feed.commit()
    other.join(PATIENCE_S)


def follow_with_token(home: Path, end: Connection) -> None:
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror", token="ours")
    next(iter(feed))
    end.send("open")
    end.recv()
    try:
        feed.commit()
    except sk.FencedError as error:
        end.send(type(error).__name__)


def test_a_second_feed_of_one_reader_is_refused_while_the_first_is_open(home: Path) -> None:
    first = sk.feed(home, "accounts", "total", after=0, reader="mirror")
    with pytest.raises(sk.FencedError, match="each feed has a name of its own"):
        sk.feed(home, "accounts", "moves", after=0, reader="mirror")
    next(iter(first))
    first.commit()
    first.close()
    second = sk.feed(home, "accounts", "moves", after=0, reader="mirror")
    del second  # without close
    sk.feed(home, "accounts", "moves", after=0, reader="mirror").close()


def test_a_call_that_fails_leaves_no_lease_that_others_have_to_wait_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(sk.QueryError, match="has no state 'totl'"):
        sk.feed(home, "accounts", "totl", after=1, reader="mirror")
    assert lease_of(Repository(home), "mirror") is None
    monkeypatch.setattr("tempfile.tempdir", str(home / "none"))
    with pytest.raises(sk.StorageError):
        sk.feed(home, "accounts", "total", after=1, reader="mirror", before=True)
    stored = lease_of(Repository(home), "mirror")
    assert stored is not None
    assert stored.lease.released
    monkeypatch.undo()
    sk.feed(home, "accounts", "moves", after=1, reader="mirror").close()


def test_a_lease_is_renewed_while_one_epoch_is_applied(home: Path) -> None:
    with sk.feed(home, "accounts", "total", reader="mirror", lease_ttl="30 ms") as feed:
        for _ in next(iter(feed)):
            before, end = lease_of(Repository(home), "mirror"), stopwatch_s() + PATIENCE_S
            while lease_of(Repository(home), "mirror") == before:
                assert stopwatch_s() < end
                sleep_s(0.01)


def test_a_reader_whose_name_was_taken_gets_an_error_while_it_applies_an_epoch(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", reader="mirror", lease_ttl="30 ms")
    changes = iter(next(iter(feed)))
    next(changes)
    lease, end = feed._lease, stopwatch_s() + PATIENCE_S
    assert lease is not None
    assert lease._renewal is not None
    while lease._renewal.error is None:
        assert stopwatch_s() < end
        ReaderLease.take(Repository(home), "mirror", 1)  # a renewal may be about to write
        sleep_s(0.01)
    with pytest.raises(sk.FencedError, match="was taken over"):
        next(iter(feed))
    with pytest.raises(sk.FencedError, match="was taken over"):
        next(changes)
    with pytest.raises(sk.FencedError, match="was taken over"):
        feed.commit()


def test_a_feed_that_was_closed_says_so(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror")
    next(iter(feed))
    feed.close()
    feed.close()
    for act in (lambda: next(iter(feed)), feed.commit):
        with pytest.raises(sk.QueryError, match="the feed was closed"):
            act()


@pytest.mark.parametrize(
    "wrong",
    [
        {"after": "0"},
        {"after": -1},
        {"after": True},
        {"until": 1.5},
        {"reader": "../x"},
        {"reader": 5},
        {"reader": "mirror", "lease_ttl": "soon"},
        {"reader": "mirror", "lease_ttl": "0 s"},
        {"reader": "mirror", "lease_ttl": "110000 days"},
        {"reader": "mirror", "token": ""},
        {"token": "alone"},
        {"lease_ttl": "1 hour"},
        {"follow": True, "poll": "0 s"},
    ],
)
def test_arguments_that_cannot_be_are_refused_and_no_lease_is_taken(
    home: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(sk.StateTypeError) as refused:
        sk.feed(home, "accounts", "total", **wrong)
    assert next(reversed(wrong)) in str(refused.value)
    assert not list(Repository(home).names("readers"))


def test_keys_of_several_fields_can_be_keys_of_a_table(tmp_path: Path) -> None:
    job = sk.Job("shops")
    job.source("records", Sale).process(sales)
    records = [Sale("rome", 1, Day(1, 31), 5), Sale("oslo", 2, Day(2, 1), 7)]
    job.run({"records": records}, checkpoint=tmp_path / "c")
    (epoch,) = sk.feed(tmp_path / "c", "sales", "by_day")
    table = {(change.key, change.place): change.value for change in epoch}
    assert table == {(("rome", 1), (1, 31)): 5, (("oslo", 2), (2, 1)): 7}
    with sk.Replica(tmp_path / "c") as replica, replica.at() as view:
        totals = view.state("sales", "total")
        assert dict(totals.items()) == {("rome", 1): 5, ("oslo", 2): 7}
        assert totals.get(("rome", 1)) == totals.get(["rome", 1]) == 5
        assert view.state("sales", "by_day").entry(("oslo", 2), (2, 1)) == 7


def test_only_returned_epochs_of_a_named_reader_are_committed(home: Path) -> None:
    with pytest.raises(sk.QueryError, match="pass reader=NAME"):
        sk.feed(home, "accounts", "total", after=1).commit()
    feed = sk.feed(home, "accounts", "total", after=1, reader="mirror")
    with pytest.raises(sk.QueryError, match="epoch 2 cannot be committed"):
        feed.commit(2)
    with sk.feed(home, "accounts", "total", reader="new") as fresh:
        with pytest.raises(sk.QueryError, match="has returned no epoch yet"):
            fresh.commit()
        with pytest.raises(sk.QueryError, match="has returned no epoch yet"):
            fresh.commit(0)
    with pytest.raises(sk.StateTypeError, match="epoch='2'"):
        feed.commit("2")  # type: ignore[arg-type]


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


def test_a_checkpoint_that_was_replaced_by_one_with_as_many_epochs_is_an_error(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total", after=3)
    assert kinds(feed) == []
    shutil.rmtree(home)
    run(home, 16)
    with pytest.raises(sk.QueryError, match=r"was replaced.*statekit.read or a new replica"):
        list(feed)
    following = sk.feed(home, "accounts", "total", after=3, follow=True, poll="1 ms")
    shutil.rmtree(home)
    run(home, 16)
    with pytest.raises(sk.QueryError, match="was replaced"):
        list(following)


@pytest.mark.parametrize("count", [0, 20, 24])
def test_a_position_is_refused_once_the_checkpoint_was_replaced(
    home: Path, tmp_path: Path, count: int
) -> None:
    """The epochs are then fewer, as many, or more. Epochs that the backup has continue."""
    shutil.copytree(home, tmp_path / "backup")
    run(home, 20)
    kept, lost = (epoch.position for epoch in sk.feed(home, "accounts", "total", after=2))
    shutil.rmtree(home)
    (tmp_path / "backup").rename(home)
    if count:
        run(home, count, with_a_new_state)
    with pytest.raises(sk.QueryError, match=r"was replaced: it does not continue the epoch 4 "):
        sk.feed(home, "accounts", "total", lost)
    later = [epoch.epoch for epoch in sk.feed(home, "accounts", "total", kept)]
    assert later == [*range(4, count // 4)]


def test_a_feed_continues_after_a_position(home: Path) -> None:
    feed = sk.feed(home, "accounts", "total")
    positions = [feed.position]
    whole = []
    for epoch in feed:
        whole.append((epoch.epoch, epoch.position))
        positions.append(feed.position)
    assert positions == [None, *(position for _, position in whole)]
    for number, position in whole:
        rest = [epoch.epoch for epoch in sk.feed(home, "accounts", "total", position)]
        assert rest == [epoch for epoch, _ in whole if epoch > number]
    wrong: list[Any] = ["3", "", f"{whole[0][1]}x", 2.0]
    for after in wrong:
        with pytest.raises(sk.StateTypeError, match=r"after=.*Nothing was read"):
            sk.feed(home, "accounts", "total", after)


def test_epochs_that_do_not_exist_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(sk.QueryError, match="has no epoch 7: it has 0 to 3"):
        sk.feed(home, "accounts", "total", after=7)
    with pytest.raises(sk.QueryError, match="has no operator 'sales'"):
        sk.feed(home, "sales", "total", after=1)
    with pytest.raises(sk.RestoreError):
        sk.feed(tmp_path / "nothing", "accounts", "total")
    Repository(tmp_path / "empty")
    assert kinds(sk.feed(tmp_path / "empty", "accounts", "total")) == []
    with pytest.raises(sk.QueryError, match="has no committed epoch for reader 'mirror'"):
        sk.feed(tmp_path / "empty", "accounts", "total", reader="mirror")
