"""Sinks that leave each record once pass, and others fail with the moment of the kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import check_sink
from statekit.testing.sinks.check_sink import _chosen
from statekit.testing.sinks.sink_job import KillPoint
from statekit.testing.sinks.sink_report import differing
from tests.support.places import ROOT


class Order(NamedTuple):
    customer: str
    cents: int


class Payment(NamedTuple):
    cents: int


pytestmark = pytest.mark.slow

ORDERS = [Order("ada", 5), Order("bob", 1), Order("ada", 7), Order("ada", 5)]

Sink = Callable[[list[Any], int], None]
Read = Callable[[], list[Any]]
Make = Callable[[Path], tuple[Any, Any]]


def orders_of(text: str) -> list[Order]:
    return [Order(*json.loads(line)) for line in text.splitlines()]


def text_of(records: list[Order]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# ------------------------------------------------------------------------------------ right sinks


def file_per_epoch(place: Path) -> tuple[Sink, Read]:
    def renamed(records: list[Order], epoch: int) -> None:
        draft = place / f"{epoch}.draft"
        draft.write_text(text_of(records))
        draft.rename(place / f"{epoch}.json")

    def read() -> list[Order]:
        return [each for file in place.glob("*.json") for each in orders_of(file.read_text())]

    return renamed, read


def directory_per_epoch(place: Path) -> tuple[Sink, Read]:
    def replaced(records: list[Order], epoch: int) -> None:
        own = place / str(epoch)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        for number, record in enumerate(records):
            (own / str(number)).write_text(text_of([record]))

    def read() -> list[Order]:
        return [each for file in place.glob("*/*") for each in orders_of(file.read_text())]

    return replaced, read


def table(place: Path) -> tuple[sqlite3.Connection, Read]:
    """A table that is named after the place, and a function that reads it."""
    connection = sqlite3.connect(place / "sink.db", isolation_level=None)
    columns = "(customer TEXT, cents INT, epoch INT)"
    connection.execute(f"CREATE TABLE IF NOT EXISTS {place.name} {columns}")

    def read() -> list[Order]:
        rows = connection.execute(f"SELECT customer, cents FROM {place.name}")
        return [Order(*row) for row in rows]

    return connection, read


def one_transaction(place: Path) -> tuple[Sink, Read]:
    connection, read = table(place)

    def replaced(records: list[Order], epoch: int) -> None:
        connection.execute("BEGIN")
        connection.execute(f"DELETE FROM {place.name} WHERE epoch = ?", (epoch,))
        for record in records:
            connection.execute(f"INSERT INTO {place.name} VALUES (?, ?, ?)", (*record, epoch))
        connection.execute("COMMIT")

    return replaced, read


def two_transactions(place: Path) -> tuple[Sink, Read]:
    """Deletes, then inserts: readers may miss an epoch for a while, until it has run again."""
    connection, read = table(place)

    def replaced(records: list[Order], epoch: int) -> None:
        connection.execute(f"DELETE FROM {place.name} WHERE epoch = ?", (epoch,))
        for record in records:
            connection.execute(f"INSERT INTO {place.name} VALUES (?, ?, ?)", (*record, epoch))

    return replaced, read


class FilePerEpoch:
    """A sink that is an object with a method."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def write(self, records: list[Order], epoch: int) -> None:
        (self.place / f"{epoch}.json").write_text(text_of(records))


def method(place: Path) -> tuple[Sink, Read]:
    return FilePerEpoch(place).write, file_per_epoch(place)[1]


RIGHT = [file_per_epoch, directory_per_epoch, one_transaction, two_transactions, method]


@pytest.mark.parametrize("make", RIGHT)
def test_a_sink_that_replaces_what_is_there_under_the_number_of_the_epoch_passes(
    make: Make,
) -> None:
    check_sink(make, ORDERS, depth="quick")


def test_records_are_made_of_their_type() -> None:
    check_sink(file_per_epoch, Order, depth="quick")


# ------------------------------------------------------------------------------------ wrong sinks


def appending(place: Path) -> tuple[Sink, Read]:
    def appended(records: list[Order], epoch: int) -> None:
        with (place / "all").open("a") as file:
            file.write(text_of(records))

    def read() -> list[Order]:
        file = place / "all"
        return orders_of(file.read_text()) if file.exists() else []

    return appended, read


def inserting(place: Path) -> tuple[Sink, Read]:
    connection, read = table(place)

    def inserted(records: list[Order], epoch: int) -> None:
        connection.execute("BEGIN")
        for record in records:
            connection.execute(f"INSERT INTO {place.name} VALUES (?, ?, ?)", (*record, epoch))
        connection.execute("COMMIT")

    return inserted, read


def remembering(place: Path) -> tuple[Sink, Read]:
    written: set[int] = set()  # which a new process does not know

    def once(records: list[Order], epoch: int) -> None:
        if epoch not in written:
            appending(place)[0](records, epoch)
        written.add(epoch)

    return once, appending(place)[1]


def collecting(place: Path) -> tuple[Sink, Read]:
    all_records: list[Order] = []

    def collected(records: list[Order], epoch: int) -> None:
        all_records.extend(records)
        (place / "all").write_text(text_of(all_records))

    return collected, appending(place)[1]


def noted_first(place: Path) -> tuple[Sink, Read]:
    def noted(records: list[Order], epoch: int) -> None:
        note = place / f"{epoch}.note"
        if note.exists():
            return
        note.touch()
        appending(place)[0](records, epoch)

    return noted, appending(place)[1]


def noted_last(place: Path) -> tuple[Sink, Read]:
    def noted(records: list[Order], epoch: int) -> None:
        note = place / f"{epoch}.note"
        if not note.exists():
            appending(place)[0](records, epoch)
            note.touch()

    return noted, appending(place)[1]


TWICE, MISSING = "After a crash, records are there twice.", "After a crash, records are missing."


@pytest.mark.parametrize(
    ("make", "means"),
    [
        (appending, TWICE),
        (inserting, TWICE),
        (remembering, TWICE),
        (noted_last, TWICE),
        (collecting, MISSING),
        (noted_first, MISSING),
    ],
)
def test_a_sink_that_leaves_no_single_copy_fails(make: Make, means: str) -> None:
    with pytest.raises(AssertionError) as error:
        check_sink(make, ORDERS, depth="quick")
    assert means in " ".join(str(error.value).split())


def test_the_message_has_the_kill_the_fewest_records_and_what_to_do() -> None:
    with pytest.raises(AssertionError) as error:
        check_sink(appending, ORDERS)
    assert str(error.value) == (
        "appended: an epoch that runs again does not leave one copy. After a crash, records are "
        "there twice.\n"
        "\n"
        "The process was killed in epoch 0, after the sink had returned and before the commit.\n"
        "The job was started again. It runs epoch 0 again, under the same number, and goes on to "
        "its end.\n"
        "\n"
        "  record                          epoch  given  left\n"
        "  Order(customer='ada', cents=5)  0      1      2\n"
        "\n"
        "What to do: make the effect depend on the epoch's number: in one step, replace what is "
        "there under\n"
        "this number. For example, write a file that is named after the epoch and rename it from "
        "a draft, or\n"
        "delete and insert the rows of the epoch in one transaction."
    )


def test_the_message_has_the_line_before_which_the_process_was_killed() -> None:
    with pytest.raises(AssertionError, match=r"killed in epoch 0, before this line:") as error:
        check_sink(noted_first, ORDERS)
    assert "appending(place)[0](records, epoch)" in str(error.value)
    assert f"{Path(__file__).name}:" in str(error.value)


def test_a_state_that_only_a_second_epoch_needs_is_shown_with_two_records() -> None:
    with pytest.raises(AssertionError) as error:
        check_sink(collecting, ORDERS)
    assert "Order(customer='ada', cents=5)  0      1      0" in str(error.value)
    assert str(error.value).count("Order(") == 1


def failing_once_more(place: Path) -> tuple[Sink, Read]:
    def made(records: list[Order], epoch: int) -> None:
        (place / str(epoch)).mkdir()
        (place / str(epoch) / "part").write_text(text_of(records))

    return made, directory_per_epoch(place)[1]


def test_a_sink_that_fails_at_what_a_killed_process_left_fails_with_its_error_and_line() -> None:
    with pytest.raises(AssertionError, match="After a crash, it fails") as error:
        check_sink(failing_once_more, ORDERS)
    assert "FileExistsError: [Errno 17] File exists" in str(error.value)
    assert "(place / str(epoch)).mkdir()" in str(error.value)
    assert "What to do: the job has to start at whatever the killed process has left" in str(
        error.value
    )


def with_a_table(place: Path) -> tuple[Sink, Read]:
    connection = sqlite3.connect(place / "sink.db", isolation_level=None)
    connection.execute("CREATE TABLE orders (customer TEXT, cents INT, epoch INT)")
    return one_transaction(place)


def test_a_make_that_fails_at_what_is_there_fails_with_its_line() -> None:
    with pytest.raises(AssertionError, match="it fails") as error:
        check_sink(with_a_table, ORDERS, depth="quick")
    assert "table orders already exists" in str(error.value)
    assert 'connection.execute("CREATE TABLE orders' in str(error.value)


def drafts_in_sight(place: Path) -> tuple[Sink, Read]:
    """Reading takes the drafts of killed processes for files of epochs."""

    def renamed(records: list[Order], epoch: int) -> None:
        draft = place / f"{os.getpid()}.json"
        text = text_of(records)
        with draft.open("w") as file:
            file.write(text[:-5])
            file.flush()
            file.write(text[-5:])
        draft.rename(place / f"{epoch}.json")

    return renamed, file_per_epoch(place)[1]


def test_what_cannot_be_read_after_a_kill_is_a_failure() -> None:
    with pytest.raises(AssertionError, match=r"JSONDecodeError: .*, while it is read") as error:
        check_sink(drafts_in_sight, ORDERS)
    assert "file.write(text[-5:])" in str(error.value)


# ---------------------------------------------------------------------------------- without a kill


def test_a_sink_that_raises_fails_with_its_error_and_line() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        def divided(records: list[Order], epoch: int) -> None:
            print(1 // epoch)

        return divided, list

    with pytest.raises(AssertionError, match="divided: without any crash, it fails") as error:
        check_sink(make, ORDERS)
    assert "ZeroDivisionError" in str(error.value)
    assert "print(1 // epoch)" in str(error.value)
    assert "killed" not in str(error.value)


def test_a_sink_that_ends_its_process_fails() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        return lambda records, epoch: os._exit(3), list

    with pytest.raises(AssertionError, match="its process ended with exit code 3"):
        check_sink(make, ORDERS)


def test_a_sink_that_loses_records_fails_without_a_kill() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        _, read = file_per_epoch(place)
        return lambda records, epoch: file_per_epoch(place)[0](records[:1], epoch), read

    with pytest.raises(AssertionError, match="without any crash, records are missing"):
        check_sink(make, ORDERS)


def test_records_that_are_read_as_another_class_fail_and_the_message_names_equal() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        sink, read = file_per_epoch(place)
        return sink, lambda: [each._asdict() for each in read()]

    with pytest.raises(AssertionError, match=r"What to do: read\(\) has to return the records as"):
        check_sink(make, ORDERS)
    check_sink(make, ORDERS, equal=lambda order, row: order._asdict() == row, depth="quick")


def test_dicts_and_records_of_several_classes_are_written() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        def replaced(records: list[Any], epoch: int) -> None:
            (place / str(epoch)).write_text(json.dumps(records))

        return replaced, lambda: [
            r for file in place.iterdir() for r in json.loads(file.read_text())
        ]

    check_sink(make, [{"cents": 5}, {"cents": 6}], depth="quick")
    check_sink(make, [Order("ada", 5), Payment(6)], equal=_same_json, depth="quick")


def _same_json(given: Any, read: Any) -> bool:
    return bool(json.loads(json.dumps(given)) == read)


# -------------------------------------------------------------------------------------- kill points


def test_lines_of_the_users_other_files_are_kill_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger_of_test.py").write_text(
        "def write(place, text, epoch):\n"
        "    if (place / f'{epoch}.note').exists():\n"
        "        return\n"
        "    with (place / 'all').open('a') as file:\n"
        "        file.write(text)\n"
        "    (place / f'{epoch}.note').touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def make(place: Path) -> tuple[Sink, Read]:
        import ledger_of_test  # type: ignore[import-not-found]

        def delegated(records: list[Order], epoch: int) -> None:
            ledger_of_test.write(place, text_of(records), epoch)

        return delegated, appending(place)[1]

    with pytest.raises(AssertionError, match=r"ledger_of_test\.py:6: ") as error:
        check_sink(make, ORDERS)
    assert "records are there twice" in " ".join(str(error.value).split())


@given(st.integers(1, 4), st.integers(0, 9), st.integers(2, 60))
def test_jobs_are_killed_at_all_moments_or_at_so_many_that_are_spread(
    epochs: int, lines: int, count: int
) -> None:
    moments = [
        each
        for epoch in range(epochs)
        for each in [
            *[KillPoint(epoch, "line", "sink.py", line) for line in range(lines)],
            KillPoint(epoch, "written"),
            KillPoint(epoch, "committed"),
        ]
    ]
    chosen = list(_chosen(moments, count))
    single = [numbers[0] for numbers in chosen if len(numbers) == 1]
    assert len(chosen) <= count
    assert len(set(chosen)) == len(chosen)
    assert all(1 <= number <= len(moments) for number in single)
    assert any(moments[number - 1].moment == "written" for number in single)
    kinds = {moment._replace(epoch=0) for moment in moments}
    if len(kinds) + epochs <= count - count // 3:
        assert {moments[number - 1]._replace(epoch=0) for number in single} == kinds
    if len(moments) <= count:
        assert sorted(single) == list(range(1, len(moments) + 1))


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_records_are_compared_as_multisets(given_records: list[int], left: list[int]) -> None:
    missing, surplus = differing(given_records, left, lambda one, other: one == other)
    assert Counter(missing) == Counter(given_records) - Counter(left)
    assert Counter(surplus) == Counter(left) - Counter(given_records)


# ------------------------------------------------------------------------------ against a model

STEPS = ("delete", "insert", "note", "stop if noted")
"""Each is done completely or not at all."""


class Contents:
    """The rows of a sink, each an epoch and a record, and the epochs that it has noted."""

    def __init__(self, rows: Sequence[Any] = (), noted: Sequence[int] = ()) -> None:
        self.rows = [tuple(row) for row in rows]
        self.noted = list(noted)

    def do(self, step: str, epoch: int, cents: Sequence[int]) -> bool:
        """Do a step. Return whether the sink goes on."""
        if step == "stop if noted":
            return epoch not in self.noted
        if step == "delete":
            self.rows = [row for row in self.rows if row[0] != epoch]
        elif step == "insert":
            self.rows += [(epoch, each) for each in cents]
        else:
            self.noted.append(epoch)
        return True


def model_is_right(steps: Sequence[str], epochs: int = 1, kills: int = 2) -> bool:
    """Whether each row is there once, whichever steps of whichever epochs are the last ones before
    some kills.
    """

    def ends(contents: Contents, epoch: int, kills: int) -> Iterator[Contents]:
        """Yield the contents after the job, for each way in which it may be killed."""
        if epoch == epochs:
            yield contents
            return
        now = Contents(contents.rows, contents.noted)
        for step in steps:
            if kills:
                yield from ends(Contents(now.rows, now.noted), epoch, kills - 1)
            if not now.do(step, epoch, [epoch]):
                break
        if kills:
            yield from ends(Contents(now.rows, now.noted), epoch, kills - 1)
        yield from ends(now, epoch + 1, kills)

    wanted = [(epoch, epoch) for epoch in range(epochs)]
    return all(sorted(found.rows) == wanted for found in ends(Contents(), 0, kills))


def stepping(steps: Sequence[str]) -> Make:
    """A sink that does steps in a file, each by a rename."""

    def make(place: Path) -> tuple[Sink, Read]:
        file, draft = place / "contents", place / "draft"

        def load() -> Contents:
            return Contents(*json.loads(file.read_text())) if file.exists() else Contents()

        def stepped(records: list[Order], epoch: int) -> None:
            for step in steps:
                contents = load()
                if not contents.do(step, epoch, [record.cents for record in records]):
                    return
                draft.write_text(json.dumps([contents.rows, contents.noted]))
                draft.rename(file)

        return stepped, lambda: [Order("ada", cents) for _, cents in load().rows]

    return make


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=3).filter(lambda s: "insert" in s))
def test_sinks_of_any_steps_pass_if_and_only_if_a_model_of_all_kills_is_right(
    steps: list[str],
) -> None:
    is_right = model_is_right(steps)
    assume(is_right == model_is_right(steps, kills=1))  # not all pairs of kills are tried
    expected = contextlib.nullcontext() if is_right else pytest.raises(AssertionError)
    with expected:
        check_sink(stepping(steps), [Order("ada", 0)], depth="quick")


def test_the_model_knows_right_and_wrong_steps() -> None:
    assert model_is_right(["delete", "insert"], 3)
    assert not model_is_right(["insert"])
    assert not model_is_right(["stop if noted", "note", "insert"])


# -------------------------------------------------------------------------------- wrong arguments


def test_an_error_in_make_is_raised_as_it_is() -> None:
    def make(place: Path) -> tuple[Sink, Read]:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        check_sink(make, ORDERS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (7, r"takes a function that returns the sink and a function that reads .*not 7"),
        (lambda place: print, "return the sink and a function that reads what it has written"),
        (lambda place: (7, list), r"make\(\) returned 7 as the sink: return a function"),
        (lambda place: (print, 7), r"make\(\) returned 7 to read with: return a function"),
        (lambda place: (print, lambda: None), r"read\(\) returned None: return all records"),
    ],
)
def test_a_make_that_returns_something_else_says_what_to_return(make: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        check_sink(make, ORDERS)


def test_a_make_with_an_open_connection_says_where_to_open_it() -> None:
    lock = threading.Lock()

    def make(place: Path) -> tuple[Sink, Read]:
        with lock:
            return print, list

    with pytest.raises(sk.StateTypeError, match=r"open connections and files within make\(\)"):
        check_sink(make, ORDERS)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], r"events=\[\] has no records: give some, or their type"),
        ([1, 2], "record type"),
        (bool, "no 6 different records can be made of it: give some, as a list"),
    ],
)
def test_events_without_records_say_what_to_give(events: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        check_sink(file_per_epoch, events)


def test_an_unknown_depth_names_those_there_are() -> None:
    depth: Any = "deeper"
    with pytest.raises(sk.StateTypeError, match="use one of quick, normal, deep"):
        check_sink(file_per_epoch, ORDERS, depth=depth)


def test_a_sink_of_columns_needs_records_with_fields() -> None:
    def make(place: Path) -> tuple[Any, Read]:
        return sk.sinks.parquet(place), list

    with pytest.raises(sk.StateTypeError, match="such a sink takes columns"):
        check_sink(make, [{"cents": 5}])


# ------------------------------------------------------------------------------------ as a script


def test_a_script_calls_it_at_its_top_level_and_nothing_is_left(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from typing import NamedTuple\n"
        "from statekit.testing import check_sink\n"
        "class Order(NamedTuple):\n"
        "    cents: int\n"
        "def make(place):\n"
        "    def replaced(records, epoch):\n"
        "        (place / str(epoch)).write_text(repr([r.cents for r in records]))\n"
        "    def read():\n"
        "        return [Order(c) for f in place.iterdir() for c in eval(f.read_text())]\n"
        "    return replaced, read\n"
        "check_sink(make, [Order(1), Order(2)], depth='quick')\n"
        "print('passed')\n"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.stdout, done.returncode) == ("passed\n", 0), done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
