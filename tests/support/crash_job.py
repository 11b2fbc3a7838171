"""A job with state of every kind, and what it does, in plain Python.

The model shares nothing with statekit but the types of the records. It says what is held and put
out after a chain of epochs, given how each of them stood in time.
"""

from __future__ import annotations

import copy
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import statekit as sk

EPOCH_SIZE = 20
"""Records in an epoch."""

KEY_GROUPS = 8
WORDS = 9
BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

LATENESS = dt.timedelta(seconds=10)
PAUSE = dt.timedelta(seconds=12)
"""After so long without a record, a session is over."""

RECENT = dt.timedelta(seconds=25)
"""How long the last records are remembered."""

ALARM = dt.timedelta(milliseconds=700)
"""A record is followed by an alarm at most so long after it, on the wall clock."""


class Seen(NamedTuple):
    word: str
    at: dt.datetime
    number: int


class Told(NamedTuple):
    """Something that the job puts out."""

    word: str
    what: str
    numbers: list[int]


def _shared(total: int, shards: int) -> list[int]:
    return [total // shards + (place < total % shards) for place in range(shards)]


_Handled = Annotated[
    sk.OperatorState[int], sk.Default(0), sk.Redistribute(split=_shared, merge=sum)
]
_Recent = Annotated[sk.MapState[int, int], sk.TTL(RECENT, clock="event")]


@sk.process(key="word", event_time="at", lateness=LATENESS)
def watch(
    seen: Seen,
    ctx: sk.Context,
    times: sk.ValueState[int],
    numbers: sk.ListState[int],
    digits: sk.MapState[int, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
    recent: _Recent,
    alarms: sk.ValueState[int],
    handled: _Handled,
    log: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
) -> Iterator[Told]:
    times.update((times.get() or 0) + 1)
    numbers.append(seen.number)
    digit = seen.number % 10
    digits[digit] = digits.get(digit, 0) + 1
    most.add(seen.number)
    recent[seen.number % 4] = seen.number
    handled.update((handled.get() or 0) + 1)
    log.append(seen.number)
    ctx.timers.replace(seen.at + PAUSE, "over")
    ctx.timers.set(ctx.processing_time + _delay(seen.number), str(seen.number), clock="processing")
    yield Told(seen.word, "seen", [seen.number, times.get() or 0])


@watch.on_timer("over")
def over(
    timer: sk.Timer, ctx: sk.Context[str], numbers: sk.ListState[int], recent: _Recent
) -> Iterator[Told]:
    yield Told(ctx.key, "over", [*numbers, -1, *(recent[place] for place in sorted(recent))])
    numbers.clear()


@watch.on_timer
def alarm(timer: sk.Timer, ctx: sk.Context[str], alarms: sk.ValueState[int]) -> Iterator[Told]:
    alarms.update((alarms.get() or 0) + 1)
    yield Told(ctx.key, "alarm", [int(timer.name)])


def _delay(number: int) -> dt.timedelta:
    return ALARM * (number % 5) / 4


def crash_job() -> sk.Job:
    job = sk.Job("crashing", key_groups=KEY_GROUPS)
    job.source("seen", Seen).process(watch).sink("told")
    return job


def records(seed: int, start: int) -> list[Seen]:
    """The records of the epoch that starts behind so many: a second each, some of them late."""
    found = []
    for number in range(start, start + EPOCH_SIZE):
        chosen = random.Random(f"{seed} {number}")
        behind = chosen.choice((0, 0, 0, 3, 8, 15, 30))
        at = BEGAN + dt.timedelta(seconds=number - behind)
        found.append(Seen(f"w{int(WORDS * chosen.random() ** 2)}", at, number))
    return found


# ----------------------------------------------------------------------------------------- model


@dataclass
class _Key:
    """What is held of a word."""

    times: int = 0
    numbers: list[int] = field(default_factory=list)
    digits: dict[int, int] = field(default_factory=dict)
    most: int = -1
    recent: dict[int, tuple[int, dt.datetime]] = field(default_factory=dict)
    alarms: int = 0
    over_at: dt.datetime | None = None
    alarm_at: dict[int, dt.datetime] = field(default_factory=dict)


@dataclass
class Model:
    """Everything after a chain of epochs.

    Attributes:
        offset: how many records were read.
        outputs: what the last epoch put out, sorted.
        late: how many records were late so far.
    """

    offset: int = 0
    outputs: list[list[Any]] = field(default_factory=list)
    late: int = 0
    _handled: list[int] = field(default_factory=list)
    _keys: dict[str, _Key] = field(default_factory=dict)
    _largest: dt.datetime | None = None
    _watermark: dt.datetime | None = None
    _reached: dt.datetime | None = None

    def after(self, seed: int, now: dt.datetime) -> Model:
        """The model after one more epoch, which took place at an instant on the wall clock."""
        made = copy.deepcopy(self)
        made.outputs = []
        made._begin()
        for seen in records(seed, self.offset):
            made._handle(seen, now)
        made._fire(now)
        made.offset += EPOCH_SIZE
        made.outputs.sort()
        return made

    def _begin(self) -> None:
        self._reached = self._watermark
        if self._largest is not None:
            reached = self._largest - LATENESS
            self._watermark = max(reached, self._watermark or reached)

    def _handle(self, seen: Seen, now: dt.datetime) -> None:
        if self._watermark is not None and seen.at <= self._watermark:
            self.late += 1
            return
        self._largest = max(seen.at, self._largest or seen.at)
        self._handled.append(seen.number)
        key, number = self._keys.setdefault(seen.word, _Key()), seen.number
        key.times += 1
        key.numbers.append(number)
        key.digits[number % 10] = key.digits.get(number % 10, 0) + 1
        key.most = max(key.most, number)
        _, written = key.recent.get(number % 4, (0, seen.at))
        key.recent[number % 4] = (number, max(written, seen.at))
        key.over_at = seen.at + PAUSE
        key.alarm_at[number] = now + _delay(number)
        self.outputs.append([seen.word, "seen", [number, key.times]])

    def _fire(self, now: dt.datetime) -> None:
        for word, key in self._keys.items():
            if key.over_at is not None and self._has_passed(key.over_at):
                # As if the watermark had come by in small steps.
                recent = _recent(key, max(key.over_at, self._reached or key.over_at))
                key.over_at = None
                told = [*key.numbers, -1, *(recent[place] for place in sorted(recent))]
                self.outputs.append([word, "over", told])
                key.numbers = []
            due = [number for number, at in key.alarm_at.items() if at <= now]
            for number in due:
                del key.alarm_at[number]
                key.alarms += 1
                self.outputs.append([word, "alarm", [number]])

    def _has_passed(self, at: dt.datetime) -> bool:
        return self._watermark is not None and at <= self._watermark

    def states(self) -> dict[str, dict[str, Any]]:
        """What each state holds, per key that it holds something for."""
        held: dict[str, dict[str, Any]] = {
            "times": {word: key.times for word, key in self._keys.items()},
            "numbers": {word: key.numbers for word, key in self._keys.items()},
            "digits": {word: key.digits for word, key in self._keys.items()},
            "most": {word: key.most for word, key in self._keys.items() if key.times},
            "recent": {word: _recent(key, self._watermark) for word, key in self._keys.items()},
            "alarms": {word: key.alarms for word, key in self._keys.items()},
        }
        return {
            state: {word: value for word, value in of.items() if value not in (0, [], {})}
            for state, of in held.items()
        }

    def handled(self) -> list[int]:
        """The numbers of all records that were handled: what shards hold, together."""
        return sorted(self._handled)


def _recent(key: _Key, now: dt.datetime | None) -> dict[int, int]:
    """What is still remembered of the last records of a word."""
    return {
        place: number
        for place, (number, written) in key.recent.items()
        if now is None or written + RECENT > now
    }
