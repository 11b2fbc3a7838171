"""A run in this process reads sources by offsets, which are committed with the state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import Run
from statekit.sinks import Part, Receipt
from statekit.sources import BadRecord
from tests.support.log_source import LogSource
from tests.support.sinks import ORDERS, Noted, Order, Spent, spending, spending_job, sums


@pytest.fixture
def log(tmp_path: Path) -> LogSource:
    home = tmp_path / "log"
    home.mkdir()
    return LogSource(home)


def job_of(source: Any, **options: Any) -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order, source, **options).process(spending).sink("spent")
    return job


def spent(*runs: Run) -> list[Spent]:
    found: list[Any] = [record for run in runs for record in run["spent"]]
    return sorted(found)


def offsets(root: Path) -> Any:
    repository = Repository(root)
    latest = repository.latest_epoch()
    assert latest is not None
    return repository.manifest(latest).offsets


def test_a_run_reads_all_records_that_are_there_and_the_next_one_those_that_follow(
    root: Path, log: LogSource
) -> None:
    log.append("a", ORDERS[:5])
    log.append("b", ORDERS[5:7])
    first = job_of(log).run(checkpoint=root)
    assert offsets(root) == {"orders": {"a": 5, "b": 2}}
    log.append("a", ORDERS[7:])
    second = job_of(log).run(checkpoint=root)
    assert log.calls.count("read a 0 5") == 1
    assert spent(first, second) == sums(ORDERS)
    assert offsets(root) == {"orders": {"a": 10, "b": 2}}
    assert log.calls[0] == "open here"
    assert log.calls[-1] == "close"
    third = job_of(log).run(checkpoint=root)
    assert third.epochs == 0, "there was nothing to read"


def test_an_epoch_has_as_many_records_as_its_size(root: Path, log: LogSource) -> None:
    log.append("a", ORDERS[:7])
    log.append("b", ORDERS[7:])
    run = job_of(log).run(checkpoint=root, epoch_size=5)
    assert run.epochs == 3
    assert spent(run) == sums(ORDERS)


def test_a_partition_that_appears_later_is_read_from_its_first_record(
    root: Path, log: LogSource
) -> None:
    log.append("a", ORDERS[:5])
    first = job_of(log).run(checkpoint=root)
    log.append("new", ORDERS[5:])
    second = job_of(log).run(checkpoint=root)
    assert spent(first, second) == sums(ORDERS)


def test_an_epoch_that_was_begun_reads_the_same_records_again(root: Path, log: LogSource) -> None:
    class Failing(Noted):
        fails = True

        def publish(self, attempt: Any, receipts: Any) -> None:
            super().publish(attempt, receipts)
            if self.fails:
                raise RuntimeError("the process ends here")

    failing = Failing()
    log.append("a", ORDERS[:4])
    with pytest.raises(sk.ProcessError, match="the process ends here"):
        job_of(log).run(checkpoint=root, outputs={"spent": failing})
    before = failing.rows[0]
    log.append("a", ORDERS[4:])
    failing.fails = False
    job_of(log).run(checkpoint=root, outputs={"spent": failing})
    assert failing.rows[0] == before, "the epoch grew after its outputs were published"
    assert sorted(Spent(**row) for rows in failing.rows.values() for row in rows) == sums(ORDERS)


def test_an_input_of_the_run_goes_before_the_source_of_the_job(log: LogSource) -> None:
    log.append("a", ORDERS)
    assert spent(job_of(log).run({"orders": ORDERS[:2]})) == sums(ORDERS[:2])
    assert log.calls == []


class Rate(NamedTuple):
    customer: str
    percent: int


@sk.process(key="customer")
def discounted(order: Order | Rate, rate: sk.ValueState[int]) -> Iterator[Spent]:
    if isinstance(order, Rate):
        rate.update(order.percent)
    else:
        yield Spent(order.customer, order.cents * (100 - (rate.get() or 0)) // 100)


@pytest.mark.parametrize("form", ["iterable", "source"])
def test_a_table_is_read_completely_before_the_first_record_of_a_stream(
    root: Path, log: LogSource, tmp_path: Path, form: str
) -> None:
    rates = [Rate(f"c{number % 3}", 50) for number in range(3000)]
    table: Any = rates
    if form == "source":
        (tmp_path / "rates").mkdir()
        table = LogSource(tmp_path / "rates", is_bounded=True)
        table.append("all", rates)
    log.append("a", ORDERS[:6])
    job = sk.Job("shop")
    orders, of_rates = job.source("orders", Order, log), job.source("rates", Rate)
    orders.union(of_rates).process(discounted).sink("spent")
    run = job.run({"rates": table}, checkpoint=root)
    assert run.epochs == 2
    log.append("a", ORDERS[6:])
    again = job.run({"rates": table}, checkpoint=root)
    found = spent(run, again)
    assert found == sorted(Spent(order.customer, order.cents // 2) for order in ORDERS)


def followed(job: sk.Job, wanted: Callable[[Noted], bool], **options: Any) -> Noted:
    """Follow a job's sources until its sink has what is wanted."""
    stop = threading.Event()

    class Watched(Noted):
        def publish(self, attempt: Any, receipts: Any) -> None:
            super().publish(attempt, receipts)
            if wanted(self):
                stop.set()

    sink = Watched()
    outputs = {"spent": sink}
    run: Run = job.run(outputs=outputs, follow=True, stop=stop, **options)
    assert run.last_epoch is not None
    return sink


def spent_in(noted: Noted) -> list[Spent]:
    return sorted(Spent(**row) for rows in noted.rows.values() for row in rows)


def test_a_run_that_follows_reads_what_is_appended_until_it_is_stopped(
    root: Path, log: LogSource
) -> None:
    log.append("a", ORDERS[:5])

    def wanted(noted: Noted) -> bool:
        if noted.rows.keys() == {0}:
            threading.Timer(0.01, log.append, ("b", ORDERS[5:])).start()
        return len(spent_in(noted)) == len(ORDERS)

    assert spent_in(followed(job_of(log), wanted, checkpoint=root)) == sums(ORDERS)
    assert offsets(root) == {"orders": {"a": 5, "b": 7}}


def test_a_partition_that_is_new_may_be_empty_and_its_batches_without_columns(
    root: Path, log: LogSource
) -> None:
    log.append("a", ORDERS[:5])
    first = job_of(log).run(checkpoint=root)
    log.append("a", ORDERS[5:])
    log.append("b", [])
    assert spent(first, job_of(log).run(checkpoint=root)) == sums(ORDERS)


def test_heartbeats_make_epochs_without_records(root: Path, log: LogSource) -> None:
    log.append("a", ORDERS)
    noted = followed(
        job_of(log), lambda noted: len(noted.rows) == 4, checkpoint=root, heartbeat="10 ms"
    )
    assert [len(rows) for rows in noted.rows.values()] == [len(ORDERS), 0, 0, 0]


def bad_log(log: LogSource) -> LogSource:
    rows: list[Any] = [order._asdict() for order in ORDERS]
    log.append("a", [*rows[:3], {"customer": "eve", "cents": None}, *rows[3:]])
    return log


def test_a_bad_record_ends_the_job_and_says_where_it_is(root: Path, log: LogSource) -> None:
    with pytest.raises(
        sk.ProcessError,
        match=r"source 'orders': the record at 3 of partition 'a' does not fit Order: Order.cents "
        r"is null.*Nothing of epoch 0 is committed.*\"collect\"",
    ):
        job_of(bad_log(log)).run(checkpoint=root)
    assert Repository(root).latest_epoch() is None


def test_bad_records_are_dropped_and_counted(root: Path, log: LogSource) -> None:
    run = job_of(bad_log(log), on_error="drop").run(checkpoint=root)
    assert spent(run) == sums(ORDERS)
    assert Repository(root).manifest(run.last_epoch or 0).bad_records == {"orders": 1}


def test_bad_records_are_a_stream_of_their_own(root: Path, log: LogSource) -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order, bad_log(log), on_error="collect")
    orders.process(spending).sink("spent")
    errors = orders.errors.sink("errors")
    run = job.run(checkpoint=root, epoch_size=5)
    why = "Order.cents is null, but its type does not allow None"
    assert spent(run) == sums(ORDERS)
    assert run[errors] == [BadRecord("orders", "a", "3", b'{"customer":"eve","cents":null}', why)]


def test_more_bad_records_than_the_limit_end_the_job(root: Path, log: LogSource) -> None:
    bad_log(log)
    job_of(log, on_error="drop", max_errors=1).run(checkpoint=root)
    log.append("a", [ORDERS[0], {"customer": "eve", "cents": None}])
    with pytest.raises(sk.ProcessError, match=r"has 2 bad records so far, and max_errors=1"):
        job_of(log, on_error="drop", max_errors=1).run(checkpoint=root)


def test_an_iterable_does_not_continue_a_source_nor_a_source_an_iterable(
    root: Path, tmp_path: Path, log: LogSource
) -> None:
    log.append("a", ORDERS)
    job_of(log).run(checkpoint=root)
    with pytest.raises(sk.RestoreError, match="was read from a source"):
        job_of(log).run({"orders": ORDERS}, checkpoint=root)
    other = tmp_path / "other"
    job_of(None).run({"orders": ORDERS}, checkpoint=other)
    with pytest.raises(sk.RestoreError, match="of which 12 records are in the state"):
        job_of(log).run(checkpoint=other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore': use one of 'fail', 'drop', 'collect'"),
        ({"max_errors": 3}, 'max_errors= is for on_error="drop" or "collect"'),
        ({"on_error": "drop", "max_errors": -1}, "max_errors=-1"),
    ],
)
def test_options_of_a_source_are_checked_when_it_is_declared(
    log: LogSource, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        job_of(log, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"follow": True, "drain": True}, "drain=True is for runs that end"),
        ({"heartbeat": "1 second"}, "add follow=True"),
        ({"follow": True}, "sink 'spent' has no target"),
    ],
)
def test_options_of_a_run_that_follows_are_checked(
    log: LogSource, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        job_of(log).run(**options)


def test_a_run_that_follows_needs_a_stream() -> None:
    with pytest.raises(sk.StateTypeError, match="no input of job 'shop' is a stream"):
        job_of(None).run({"orders": ORDERS}, follow=True, outputs={"spent": Noted()})


def test_sources_are_closed_if_another_one_cannot_be_opened(log: LogSource, tmp_path: Path) -> None:
    class Unreachable(LogSource):
        def open(self, *, reads_here: bool) -> None:
            raise ConnectionRefusedError("nobody is there")

    job = sk.Job("shop")
    orders, more = (
        job.source("orders", Order, log),
        job.source("more", Order, Unreachable(tmp_path)),
    )
    orders.union(more).process(spending).sink("spent")
    with pytest.raises(sk.ProcessError, match="input 'more' failed in epoch 0 with Connection"):
        job.run()
    assert log.calls == ["open here", "close"]


def test_a_single_stream_is_asked_once_while_it_has_no_record(root: Path, log: LogSource) -> None:
    waits: list[float] = []

    class Asked(LogSource):
        def latest(self, start: Any, limit: int, wait_s: float) -> Any:
            waits.append(wait_s)
            if len(waits) == 4:
                log.append("a", ORDERS)
            return super().latest(start, limit, wait_s)

    followed(job_of(Asked(log.home)), lambda noted: bool(noted.rows), checkpoint=root)
    assert waits[0] == 0.0
    assert all(wait_s > 0 for wait_s in waits[1:]), "it was asked twice"


class NoteSeeking(Noted):
    """Looks whether an epoch is noted when its outputs are written."""

    def __init__(self, root: Path, stop: threading.Event) -> None:
        super().__init__()
        self.root, self.stop = root, stop
        self.noted: list[bool] = []

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        self.noted.append(Repository(self.root).read_note(part.epoch) is not None)
        if part.epoch == 2:
            self.stop.set()
        return super().write(part, batches)


def test_an_epoch_that_follows_streams_is_noted_before_its_outputs_are_written(
    root: Path, log: LogSource
) -> None:
    log.append("a", ORDERS)
    stop = threading.Event()
    sink = NoteSeeking(root, stop)
    spending_job(sink).run({"orders": log}, checkpoint=root, epoch_size=2, follow=True, stop=stop)
    assert sink.noted == [True, True, True]


class Blocking(LogSource):
    """Takes the place of the folder of notes when it is read."""

    def read(self, partition: str, start: int | None, end: int) -> Iterator[pa.RecordBatch]:
        (self.home.parent / "c" / "begun").write_text("no folder")
        return super().read(partition, start, end)


def test_an_epoch_that_cannot_be_noted_publishes_nothing(root: Path, log: LogSource) -> None:
    log.append("a", ORDERS)
    log = Blocking(log.home)
    sink = Noted()
    with pytest.raises(sk.StorageError, match="begun"):
        spending_job(sink).run({"orders": log}, checkpoint=root, follow=True)
    assert [call for call in sink.calls if not call.startswith("begin")] == ["close"]
    assert Repository(root).latest_epoch() is None
