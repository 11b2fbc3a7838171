"""A rate limiter: each user has a bucket of five requests, and one more every second.

    python examples/rate_limiter.py                                   in this process
    statekit run examples.rate_limiter:job --checkpoint results/rate_limiter/checkpoint
    pytest examples/rate_limiter.py                                   check the function

The bucket is a record in one value. It expires after a minute without a request, when it would be
full again in any case: `TTL` in event time.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/rate_limiter")
SIZE, REFILL = 5, dt.timedelta(seconds=1)


class Request(NamedTuple):
    user: str
    at: dt.datetime


class Decision(NamedTuple):
    user: str
    at: dt.datetime
    is_allowed: bool


class Bucket(NamedTuple):
    tokens: int
    filled_at: dt.datetime


@sk.process(key="user", event_time="at", lateness="10 seconds", ordered=True)
def limited(
    request: Request, bucket: Annotated[sk.ValueState[Bucket], sk.TTL("1 minute", clock="event")]
) -> Iterator[Decision]:
    tokens, filled_at = bucket.get() or Bucket(SIZE, request.at)
    added = (request.at - filled_at) // REFILL
    tokens, filled_at = min(SIZE, tokens + added), filled_at + added * REFILL
    if is_allowed := tokens > 0:
        bucket.update(Bucket(tokens - 1, filled_at))
    yield Decision(request.user, request.at, is_allowed)


job = sk.Job("rate_limiter")
requests = job.source("requests", Request, sk.sources.files(DATA / "requests.jsonl"))
requests.process(limited).sink("decisions", sk.sinks.json_lines(RESULTS / "decisions"))


def test_the_decisions_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(limited, depth="quick")


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint", drain=True)
    for file in sorted((RESULTS / "decisions").rglob("*.jsonl")):
        print(file.read_text(), end="")
