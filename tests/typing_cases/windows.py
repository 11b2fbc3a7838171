"""Windows: which calls fit, and what comes out of them."""

import datetime as dt
from typing import NamedTuple

import statekit as sk


class Impression(NamedTuple):
    ad: str
    at: dt.datetime
    cents: int


class Hourly(NamedTuple):
    ad: str
    start: dt.datetime
    cents: int


mean: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    create=lambda: (0, 0),
    add=lambda held, added: (held[0] + added, held[1] + 1),
    result=lambda held: held[0] / held[1],
)


@sk.process(key="ad")
def best(hourly: Hourly, most: sk.ValueState[int]) -> None:
    most.update(hourly.cents)


@sk.process(key="ad")
def raw(impression: Impression) -> None: ...


source = sk.Job("ads").source("ads", Impression)
windows = source.window(
    sk.sliding("1 hour", every=dt.timedelta(minutes=5)),
    key=("ad",),
    event_time="at",
    lateness="10 minutes",
    allowed_lateness=dt.timedelta(hours=1),
    emit="change",
)
hourly: sk.Stream[Hourly] = windows.sum("cents", into=Hourly)
hourly.process(best)
hourly.window(sk.session("1 day"), key="ad", event_time="start").max("cents").sink("days")
windows.count(name="counts").process(best)
windows.collect().late.sink("late")
windows.top(2, by=("-cents", "at"), ties=True)
windows.last("cents", name="newest")
windows.aggregate(
    mean=sk.OwnAggregate(mean, accumulator=tuple[int, int], result=float, field="cents"),
    into=Hourly,
    name="mean",
).process(best)

several: sk.Stream[Hourly] = windows.aggregate(
    cents=sk.Sum("cents"), newest=sk.Last(by="at"), seen=sk.Count(), into=Hourly
)
several.process(best)

hourly.process(raw)  # error: incompatible type "Process[Impression, [], Never]"
windows.sum()  # error: Missing positional argument "field" in call to "sum" of "Windowed"
windows.top(2)  # error: Missing positional argument "by" in call to "top" of "Windowed"
windows.count("cents")  # error: Too many positional arguments for "count" of "Windowed"
windows.min("cents", into=5)  # error: Argument "into" to "min" of "Windowed"
sk.OwnAggregate(sum, accumulator=int, result=int)  # error: expected "Aggregate[Any, Any, Any]"
sk.OwnAggregate(mean, result=float)  # error: Missing named argument "accumulator"
windows.aggregate(cents="sum")  # error: "aggregate" of "Windowed" has incompatible type "str"
windows.aggregate(sk.Count())  # error: Too many positional arguments for "aggregate"
windows.aggregate(cents=sk.Sum())  # error: Missing positional argument "field" in call to "Sum"
sk.tumbling("1 day", zone="Europe/Berlin")
sk.tumbling("1 day", zone=5)  # error: incompatible type "int"; expected "str | None"
sk.tumbling(5)  # error: incompatible type "int"; expected "timedelta | str"
sk.sliding("1 hour")  # error: Missing positional argument "every"
source.window("1 hour", key="ad", event_time="at")  # error: expected "Window"
source.window(sk.tumbling("1 h"), event_time="at")  # error: Missing named argument "key"
source.window(
    sk.tumbling("1 h"),
    key="ad",
    event_time="at",
    emit="often",  # error: expected "Literal['close', 'change']"
)
