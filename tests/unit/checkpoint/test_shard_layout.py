"""Another parallelism: what new shards are made of, and that nobody can tell from results."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import COUNT_MAX, FileRef, checksum_of
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.checkpoint.shard_layout import rescaled, standing
from statekit.errors import ProcessError, RescaleError
from statekit.job.options import RunOptions
from statekit.keygroup import group_range, key_group, shard_of_group
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.working_copy.copies import DiskCopies
from tests.support.counting_job import entries, tally, tally_job
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]
GROUPS = 13

# ------------------------------------------------------------------------------------ arithmetic


def manifest_of(shards: list[ShardState], groups: int = GROUPS) -> EpochManifest:
    return EpochManifest(
        job="j",
        job_file=FileRef(path="job.json", size=0, checksum=checksum_of(b"")),
        epoch=5,
        previous=4,
        batch=7,
        offsets={"in": 3},
        parallelism=len(shards),
        key_groups=groups,
        writer="w",
        processing_time_us=12,
        drained=True,
        committed_at_us=1,
        operators={
            "o": OperatorEpoch(
                shards=tuple(shards), records_in=9, late=2, late_so_far=6, watermark_us=8
            )
        },
    )


def shard_of(number: int, of: int, rows: int, wake_us: int | None, epoch: int = 5) -> ShardState:
    first, last = group_range(number, of, GROUPS)
    return ShardState(
        first_group=first,
        last_group=last,
        attempt=f"attempt-{number}",
        changed=epoch,
        rows={"s": rows},
        bytes={"s": 10 * rows},
        wake_us={} if wake_us is None else {"event": wake_us},
    )


@st.composite
def manifests(draw: st.DrawFn) -> EpochManifest:
    parallelism = draw(st.integers(1, GROUPS))
    shards = []
    for number in range(parallelism):
        made = shard_of(
            number, parallelism, draw(st.integers(0, 9)), draw(st.none() | st.integers(0, 99))
        )
        if draw(st.booleans()):
            made = ShardState(first_group=made.first_group, last_group=made.last_group)
        shards.append(made)
    return manifest_of(shards)


def origins(manifest: EpochManifest) -> list[str | None]:
    """For each key group, the attempt that its rows come from."""
    found: list[str | None] = []
    for shard in manifest.operators["o"].shards:
        own: list[str | None] = [shard.attempt] * (shard.last_group - shard.first_group + 1)
        if shard.slices:
            own = [None] * len(own)
        for piece in shard.slices:
            for group in range(piece.first_group, piece.last_group + 1):
                own[group - shard.first_group] = piece.attempt
        found += own
    return found


@settings(deadline=None)
@given(manifests(), st.lists(st.integers(1, GROUPS), min_size=1, max_size=4))
def test_after_any_changes_of_parallelism_each_key_group_comes_from_where_it_was(
    manifest: EpochManifest, sequence: list[int]
) -> None:
    after = manifest
    for parallelism in sequence:
        before, after = after, rescaled(after, parallelism)
        assert (after.epoch, after.previous, after.cause) == (
            before.epoch + 1,
            before.epoch,
            "rescale",
        )
        assert EpochManifest.from_bytes(after.to_bytes(), "file") == after
    shards = after.operators["o"].shards
    assert [shard.groups for shard in shards] == [
        group_range(number, len(shards), GROUPS) for number in range(sequence[-1])
    ]
    assert origins(after) == origins(manifest)
    held, was = after.operators["o"], manifest.operators["o"]
    assert {name: count for name, count in held.rows.items() if count} == {
        name: count for name, count in was.rows.items() if count
    }
    for shard in shards:
        for piece in shard.slices:
            assert shard.first_group <= piece.first_group <= piece.last_group <= shard.last_group
        names = [(piece.shard, piece.attempt) for piece in shard.slices]
        assert len(set(names)) == len(names), "what comes from one shard is one slice"


@settings(deadline=None)
@given(manifests(), st.integers(1, GROUPS))
def test_a_new_shard_wakes_when_the_first_of_those_it_came_from_would(
    manifest: EpochManifest, parallelism: int
) -> None:
    for shard in rescaled(manifest, parallelism).operators["o"].shards:
        times = [
            old.wake_us["event"]
            for old in manifest.operators["o"].shards
            if old.overlaps(*shard.groups) and old.wake_us
        ]
        assert shard.wake_us == ({"event": min(times)} if times else {})


def test_everything_but_the_shards_is_carried_over() -> None:
    before = manifest_of([shard_of(number, 2, 5, None) for number in range(2)])
    after = rescaled(before, 3)
    kept = ("job", "job_file", "batch", "offsets", "key_groups", "processing_time_us", "drained")
    for name in kept:
        assert getattr(after, name) == getattr(before, name), name
    operator = after.operators["o"]
    assert (operator.watermark_us, operator.late_so_far) == (8, 6)
    assert (operator.records_in, operator.late) == (0, 0), "it handled none itself"


def test_a_shard_with_unchanged_key_groups_does_not_change() -> None:
    before = manifest_of([shard_of(number, 3, 5, 7) for number in range(3)], GROUPS)
    after = rescaled(before, 6)
    stayed = [s for s in after.operators["o"].shards if s in before.operators["o"].shards]
    ranges = {s.groups for s in before.operators["o"].shards}
    assert [s.groups for s in stayed] == [
        s.groups for s in after.operators["o"].shards if s.groups in ranges
    ]
    assert rescaled(before, 3).operators["o"].shards == before.operators["o"].shards


def test_shards_that_are_merged_are_counted_and_those_that_are_divided_are_together() -> None:
    before = manifest_of([shard_of(number, 4, 10 + number, None) for number in range(4)])
    merged = rescaled(before, 2).operators["o"]
    assert [shard.rows for shard in merged.shards] == [{"s": 21}, {"s": 25}]
    assert not merged.undivided_rows
    divided = rescaled(before, 13).operators["o"]
    assert [shard.rows for shard in divided.shards if shard.is_part] == [{}] * 13
    assert (divided.undivided_rows, divided.undivided_bytes) == ({"s": 46}, {"s": 460})
    whole = rescaled(rescaled(before, 13), 1).operators["o"]
    assert (whole.shards[0].rows, whole.shards[0].is_part) == ({"s": 46}, False)
    assert not whole.undivided_rows


@pytest.mark.parametrize("parallelism", [0, GROUPS + 1, True])
def test_a_parallelism_that_cannot_be_is_refused(parallelism: int) -> None:
    with pytest.raises(RescaleError, match="use an int from 1 to 13"):
        rescaled(manifest_of([shard_of(0, 1, 1, None)]), parallelism)


def test_key_groups_have_one_name_for_every_caller() -> None:
    before = manifest_of([shard_of(number, 4, 10, None) for number in range(4)])
    for shard in rescaled(before, 3).operators["o"].shards:
        assert standing(before, "o", *shard.groups) == shard


def test_the_parallelism_changes_as_often_as_one_likes_without_an_epoch_in_between() -> None:
    """The estimated cost of a restore doubles each time."""
    file = FileRef(path="changes", size=1000, checksum=checksum_of(b""), rows=10)
    shard = shard_of(0, 1, 5, None)
    shard = shard.model_copy(
        update={"chain": ReplayCost().followed_by(file, 1000), "files": (file,)}
    )
    manifest = manifest_of([shard])
    for parallelism in (2, 1) * 60:
        manifest = rescaled(manifest, parallelism)
    (joined,) = manifest.operators["o"].shards
    assert joined.chain.bytes == joined.chain.followed_by(file, 1000).bytes == COUNT_MAX
    assert EpochManifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_ten_thousand_shards_are_laid_out_in_a_moment() -> None:
    groups = 32768
    shards = []
    for number in range(10_000):
        first, last = group_range(number, 10_000, groups)
        shards.append(ShardState(first_group=first, last_group=last, attempt="a", changed=5))
    after = rescaled(manifest_of(shards, groups), 20_000)
    assert len(after.operators["o"].shards) == 20_000


# ---------------------------------------------------------------------------------- running jobs


class Add(NamedTuple):
    key: int
    amount: int


@sk.process(key="key")
def add(record: Add, total: sk.ValueState[int]) -> None:
    total.update((total.get() or 0) + record.amount)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_every_key_has_its_sum_in_the_shard_that_owns_its_group(
    backend: Backend, before: int, after: int
) -> None:
    harness = Harness(add, parallelism=before, key_groups=GROUPS, backend=backend)
    harness.send(*(Add(key, key) for key in range(42) for _ in range(1000)))
    harness.rescale(after)
    harness.send(*(Add(key, key) for key in range(42) for _ in range(500)))
    assert harness.parallelism == after
    runner = harness._runner
    for key in range(42):
        assert harness.state("total", key) == 1500 * key
        shard = shard_of_group(key_group(key, GROUPS), after, GROUPS)
        assert harness.shard_of(key) == shard
        for other in range(after):
            plan = runner.coordinator.plans("add")[other]
            copy = runner.copies.obtain(plan, ["total"], runner.coordinator.repository)
            groups = {row[0][1] for row in copy.backend.scan("total", b"", b"\xff")}
            assert (key_group(key, GROUPS) in groups) == (other == shard)
            copy.abandon()


class Offer(NamedTuple):
    key: str
    amount: int


@sk.process(key="key")
def keep_max(offer: Offer, best: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    best.update(max(offer.amount, best.get() or offer.amount))
    yield offer.key, best.get() or 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_w5_a_maximum_is_kept_from_three_workers_to_five_to_one(backend: Backend) -> None:
    harness = Harness(keep_max, parallelism=3, backend=backend)
    assert sorted(harness.send(Offer("a", 4), Offer("b", 4))) == [("a", 4), ("b", 4)]
    harness.rescale(5)
    assert sorted(harness.send(Offer("a", 1), Offer("b", 5))) == [("a", 4), ("b", 5)]
    harness.rescale(1)
    assert sorted(harness.send(Offer("a", 8), Offer("b", 1))) == [("a", 8), ("b", 5)]


def test_f11_key_groups_that_are_not_given_are_those_that_are_stored(tmp_path: Path) -> None:
    Harness(keep_max, 2, key_groups=GROUPS, checkpoint=tmp_path / "c").send(Offer("a", 4))
    again = Harness(keep_max, 3, checkpoint=tmp_path / "c")
    assert (again.key_groups, again.state("best", "a")) == (GROUPS, 4)
    with pytest.raises(RescaleError, match="13 key groups, the job asks for 14"):
        Harness(keep_max, 3, key_groups=14, checkpoint=tmp_path / "c")


def test_a_start_with_another_parallelism_commits_nothing_by_itself(tmp_path: Path) -> None:
    harness = Harness(tally, parallelism=2, checkpoint=tmp_path)
    harness.send(*entries(0, 50))
    harness.rescale(5)
    assert Repository(tmp_path).epochs() == [0], "the next epoch keeps its number"
    harness.send(*entries(1, 50))
    last = Repository(tmp_path).manifest(1)
    assert (last.epoch, last.parallelism, last.cause) == (1, 5, "records")


def test_untouched_shards_are_not_opened(tmp_path: Path) -> None:
    local = tmp_path / "local"
    runner = LocalRunner(
        tally_job(GROUPS).plan,
        Repository(tmp_path / "c"),
        DiskCopies(local),
        RunOptions(parallelism=2),
    )
    runner.epoch({"records": entries(0, 50)})
    again = LocalRunner(
        tally_job(GROUPS).plan,
        Repository(tmp_path / "c"),
        DiskCopies(local),
        RunOptions(parallelism=4),
    )
    again.epoch({"records": entries(0, 50)[:1]})
    homes = [path.parent.name for path in local.glob("*/tally/*/clean")]
    assert len(homes) == 2 + 1


# ------------------------------------------------------------------- against one shard in memory


class Ping(NamedTuple):
    key: int
    at: dt.datetime
    what: int


class Pong(NamedTuple):
    key: int
    what: str
    seconds: int
    seen: int


def _pinged(
    ping: Ping,
    ctx: sk.Context,
    seen: sk.ValueState[int],
    recent: Annotated[sk.MapState[int, int], sk.TTL("20 seconds", clock="event")],
    notes: sk.ListState[int],
) -> Iterator[Pong]:
    if ping.what == POISON:
        raise ValueError("poison")
    seen.update((seen.get() or 0) + 1)
    recent[ping.what] = recent.get(ping.what, 0) + 1
    notes.append(ping.what)
    if ping.what % 4 == 0:
        notes.clear()
    ctx.timers.set(ping.at + dt.timedelta(seconds=ping.what))
    if ping.what % 3 == 0:
        ctx.timers.set(at(ping.what * 10), clock="processing")
    yield Pong(ping.key, "ping", int(ping.at.timestamp()), sum(recent.values()))


def _rang(
    timer: sk.Timer,
    ctx: sk.Context[int],
    seen: sk.ValueState[int],
    recent: Annotated[sk.MapState[int, int], sk.TTL("20 seconds", clock="event")],
    notes: sk.ListState[int],
) -> Iterator[Pong]:
    notes.append(-1)
    yield Pong(ctx.key, timer.clock, int(timer.at.timestamp()), seen.get() or 0)


POISON = 99
OPTIONS: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "5 seconds"}
unordered = sk.process(**OPTIONS)(_pinged)
unordered.on_timer(_rang)
in_order = sk.process(**OPTIONS, ordered=True)(_pinged)
in_order.on_timer(_rang)

KEYS = range(6)
SEND = st.tuples(
    st.just("send"),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 12), st.integers(0, 9)), max_size=8),
)
STEPS = st.lists(
    st.one_of(
        SEND,
        SEND,
        st.tuples(st.just("rescale"), st.integers(1, GROUPS)),
        st.tuples(st.just("offline"), st.integers(1, GROUPS)),
        st.tuples(st.just("crash"), st.sampled_from(KEYS)),
        st.tuples(st.just("advance"), st.integers(1, 30)),
    ),
    min_size=10,
    max_size=10,
)


class Pair:
    """A job that is rescaled and crashes, beside one that does neither."""

    def __init__(self, process: Any, backend: Backend, home: Path) -> None:
        self.home = home
        self.tried = Harness(
            process, parallelism=2, key_groups=GROUPS, backend=backend, checkpoint=home
        )
        self.reference = Harness(process, parallelism=1, key_groups=GROUPS)
        self.seconds, self.now = 0, 0

    def do(self, step: tuple[str, Any]) -> None:
        what, given = step
        if what == "send":
            pings = [Ping(key, at(self.seconds + ahead), n) for key, ahead, n in given]
            self.seconds += 3
            assert Counter(self.tried.send(*pings)) == Counter(self.reference.send(*pings))
        elif what == "rescale":
            self.tried.rescale(given)
        elif what == "offline":
            if self.tried.epoch is not None:
                rescale_offline(Repository(self.home), given)
            self.tried.rescale(given)
        elif what == "crash":
            self.crash(given)
        else:
            self.now += given
            both = (self.tried, self.reference)
            fired = [Counter(one.advance_processing_time(at(self.now))) for one in both]
            assert fired[0] == fired[1]

    def crash(self, key: int) -> None:
        """Die in an epoch that some shards have finished."""
        if self.tried.process.ordered is None:  # otherwise it would wait, and fail for good
            pings = [Ping(other, at(self.seconds + 1), 1) for other in KEYS if other != key]
            poison = Ping(key, at(self.seconds + 60), POISON)  # never too late
            with pytest.raises(ProcessError, match="poison"):
                self.tried.send(*pings, poison)
        self.tried.crash()

    def check(self) -> None:
        for key in KEYS:
            for name in ("seen", "recent", "notes"):
                assert self.tried.state(name, key) == self.reference.state(name, key), name
            assert list(self.tried.timers(key)) == list(self.reference.timers(key))
        assert Counter(self.tried.late) == Counter(self.reference.late)
        runs = [one._runner.coordinator.last for one in (self.tried, self.reference)]
        if None not in runs:
            rows = [
                {name: count for name, count in run.operators["_pinged"].rows.items() if count}
                for run in runs
                if run is not None
            ]
            assert rows[0].keys() == rows[1].keys()
            for name in rows[0].keys() - {"recent"}:  # what has expired leaves when it is swept
                assert rows[0][name] == rows[1][name], name


def run_steps(process: Any, backend: Backend, steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        pair = Pair(process, backend, Path(home))
        for step in steps:
            pair.do(step)
        pair.check()


PROCESSES = pytest.mark.parametrize(
    "process", [unordered, in_order], ids=["as they come", "ordered"]
)


@PROCESSES
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_ten_steps_with_crashes_are_as_one_shard_that_was_never_interrupted(
    process: Any, steps: list[tuple[str, Any]]
) -> None:
    run_steps(process, "memory", steps)


@PROCESSES
@settings(max_examples=4, deadline=None)
@given(steps=STEPS)
def test_ten_steps_on_rocksdb_are_as_one_shard_in_memory(
    process: Any, steps: list[tuple[str, Any]]
) -> None:
    run_steps(process, "rocksdb", steps)
