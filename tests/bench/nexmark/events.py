"""Events of an auction site, as the Nexmark generators of Beam and Flink make them.

What lives here: the numbers of the benchmark, and `Events`, which makes any stretch of them as
Arrow columns. What does not: what is asked of them (`queries`).

Of 50 events one is a person, three are auctions and 46 are bids. Half of the bids are for the hot
auction of the moment, three quarters of them are by the hot bidder, and three quarters of the
auctions are of the hot seller. Some ids are a little ahead of the person or auction they are of.

All that an event holds follows from its number and the seed: each draw is a hash of the two. So a
stretch of events is the same, however it is cut into batches. No two events are of one instant,
while the originals have milliseconds: so "the last bid" is one bid. Texts without a meaning are
letters, as long as in the originals.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["RATE", "START", "Events", "Tables"]

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RATE = 10_000
"""Events per second of event time."""

_PERSONS, _AUCTIONS, _BIDS = 1, 3, 46
_OF = _PERSONS + _AUCTIONS + _BIDS

_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_LEAD = 10  # how far ids may be ahead of what there is
_ACTIVE_PERSONS, _OPEN_AUCTIONS = 1000, 100
_HOT = 100  # one of so many auctions, sellers and bidders is hot
_HOT_AUCTIONS, _HOT_SELLERS, _HOT_BIDDERS, _HOT_CHANNELS = 2, 4, 4, 2
_CHANNELS = 10_000
_STRIDE = 953  # a prime, by which the events of a group are told in another order
_LONG_MS = 1 + _OPEN_AUCTIONS * _OF // _AUCTIONS

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_NAMES = tuple(f"{first} {last}" for first in (*_FIRST, "Walter") for last in _LAST)
_SITES = tuple(f"https://www.nexmark.com/item.htm?query={number}" for number in range(1000))
_PLACES = ("Google", "Facebook", "Baidu", "Apple")

_INSTANT = pa.timestamp("us", tz="UTC")
_POOL, _LETTERS = 1000, 500

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Tables:
    """Some events by their kind, in the order in which they arrive."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table


@dataclass(frozen=True)
class Events:
    """The endless row of events of a seed.

    Parameters:
        seed: what all draws depend on.
        rate: events per second of event time.
        group: so many events at a time arrive in another order than that of their times. 1 is the
            order of time; not a multiple of 953.
    """

    seed: int
    rate: int = RATE
    group: int = 1

    def tables(self, first: int, count: int) -> Tables:
        """The events that arrive as number `first` and behind it."""
        number = self._arriving(first, count)
        kind = number % _OF
        return Tables(
            self._persons(number[kind < _PERSONS]),
            self._auctions(number[(kind >= _PERSONS) & (kind < _PERSONS + _AUCTIONS)]),
            self._bids(number[kind >= _PERSONS + _AUCTIONS]),
        )

    def table(self, first: int, count: int) -> pa.Table:
        """The same as one table: of `person`, `auction` and `bid` one is not null in each row."""
        kind = self._arriving(first, count) % _OF
        made = self.tables(first, count)
        which = np.searchsorted([_PERSONS, _PERSONS + _AUCTIONS], kind, side="right")
        columns = {}
        for number, (name, table) in enumerate(
            (("person", made.persons), ("auction", made.auctions), ("bid", made.bids))
        ):
            is_one = which == number
            place = pa.array(np.cumsum(is_one) - 1, pa.int64(), mask=~is_one)
            columns[name] = table.to_struct_array().combine_chunks().take(place)
        return pa.table(columns)

    # ------------------------------------------------------------------------------- numbers

    def _arriving(self, first: int, count: int) -> Ints:
        """The numbers of events in the order in which they arrive."""
        number = np.arange(first, first + count, dtype=np.int64)
        within = number % self.group
        return number - within + within * _STRIDE % self.group

    def _drawn(self, number: Ints, what: int, below: int | Ints) -> Ints:
        """A number below another for each event, the same whenever the event is made.

        Parameters:
            what: tells the draws of an event apart.
        """
        found: Ints = (_mixed(number, self.seed, what) >> np.uint64(1)).view(np.int64) % below
        return found

    def _times(self, number: Ints) -> Ints:
        """Event times, in microseconds."""
        return int(START.timestamp()) * 1_000_000 + number * 1_000_000 // self.rate

    def _prices(self, number: Ints, what: int) -> Ints:
        """Cents: from 1 to 1,000,000 dollars, each power of ten as likely as the others."""
        share = (_mixed(number, self.seed, what) >> np.uint64(11)).astype(np.float64) / 2**53
        return np.round(10 ** (share * 6) * 100).astype(np.int64)

    def _some_person(self, number: Ints, what: int) -> Ints:
        """One of those who are active, or will be soon."""
        persons = _last_person(number) + 1
        active = np.minimum(persons, _ACTIVE_PERSONS)
        return persons - active + self._drawn(number, what, active + _LEAD)

    def _some_auction(self, number: Ints, what: int) -> Ints:
        """One of those that may still be open, or will be soon."""
        last = _last_auction(number)
        least = np.maximum(last - _OPEN_AUCTIONS, 0)
        return least + self._drawn(number, what, last - least + 1 + _LEAD)

    def _hot(self, number: Ints, what: int, ratio: int, hot: Ints, other: Ints) -> Ints:
        """The hot one for all but one of so many events."""
        return np.where(self._drawn(number, what, ratio) > 0, hot, other) + _FIRST_ID

    # -------------------------------------------------------------------------------- tables

    def _persons(self, number: Ints) -> pa.Table:
        return pa.table(
            {
                "id": _last_person(number) + _FIRST_ID,
                "name": _taken(_NAMES, self._drawn(number, 1, len(_NAMES))),
                "email": self._text(number, 2, 16),
                "credit_card": self._text(number, 3, 19),
                "city": _taken(_CITIES, self._drawn(number, 4, len(_CITIES))),
                "state": _taken(_STATES, self._drawn(number, 5, len(_STATES))),
                "at": _instants(self._times(number)),
                "extra": self._text(number, 6, 120),
            }
        )

    def _auctions(self, number: Ints) -> pa.Table:
        at = self._times(number)
        long_ms = 1 + self._drawn(number, 10, 2 * _LONG_MS * 1000 // self.rate)
        initial = self._prices(number, 11)
        hot = _last_person(number) // _HOT * _HOT
        return pa.table(
            {
                "id": _last_auction(number) + _FIRST_ID,
                "item": self._text(number, 12, 20),
                "description": self._text(number, 13, 100),
                "initial_bid": initial,
                "reserve": initial + self._prices(number, 14),
                "at": _instants(at),
                "expires": _instants(at + long_ms * 1000),
                "seller": self._hot(number, 15, _HOT_SELLERS, hot, self._some_person(number, 16)),
                "category": self._drawn(number, 17, _CATEGORIES) + _FIRST_CATEGORY,
                "extra": self._text(number, 18, 340),
            }
        )

    def _bids(self, number: Ints) -> pa.Table:
        hot_auction = _last_auction(number) // _HOT * _HOT
        hot_bidder = _last_person(number) // _HOT * _HOT + 1  # not the hot seller
        auction, bidder = self._some_auction(number, 21), self._some_person(number, 23)
        channel = self._drawn(number, 26, _CHANNELS) + len(_PLACES)
        hot_channel = self._drawn(number, 27, len(_PLACES))
        is_hot = self._drawn(number, 25, _HOT_CHANNELS) > 0
        return pa.table(
            {
                "auction": self._hot(number, 20, _HOT_AUCTIONS, hot_auction, auction),
                "bidder": self._hot(number, 22, _HOT_BIDDERS, hot_bidder, bidder),
                "price": self._prices(number, 24),
                "channel": _taken(_channels(), np.where(is_hot, hot_channel, channel)),
                "url": _taken(_SITES, self._drawn(number, 28, len(_SITES))),
                "at": _instants(self._times(number)),
                "extra": self._text(number, 29, 20),
            }
        )

    def _text(self, number: Ints, what: int, length: int) -> pa.Array:
        """One of a thousand texts of a length."""
        texts = _texts(self.seed)
        return _taken([text[:length] for text in texts], self._drawn(number, what, len(texts)))


def _mixed(number: Ints, seed: int, what: int) -> Words:
    """64 bits that look like chance, of three numbers: the finish of SplitMix64."""
    steps = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7], np.uint64)
    apart = np.array([seed, what], np.uint64) * steps[1:]
    mixed: Words = (number.astype(np.uint64) + np.uint64(1)) * steps[0] + apart[0] + apart[1]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _last_person(number: Ints) -> Ints:
    """The person that an event is, or the last one before it."""
    return number // _OF


def _last_auction(number: Ints) -> Ints:
    """The auction that an event is, or the last one before it."""
    within = np.clip(number % _OF - _PERSONS, -1, _AUCTIONS - 1)  # -1: the last of the fifty before
    return number // _OF * _AUCTIONS + within


def _instants(times_us: Ints) -> pa.Array:
    return pa.array(times_us, pa.int64()).cast(_INSTANT)


def _taken(values: Sequence[str], chosen: Ints) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(chosen))


@cache
def _channels() -> tuple[str, ...]:
    return (*_PLACES, *(f"channel-{number}" for number in range(_CHANNELS)))


@cache
def _texts(seed: int) -> tuple[str, ...]:
    letters = np.random.default_rng(seed).integers(97, 123, (_POOL, _LETTERS), dtype=np.uint8)
    return tuple(row.tobytes().decode() for row in letters)
