"""Sessions to a lake: the visits of a web site, as a Delta Lake table with one row per session.

    python examples/sessions.py                                       in this process
    statekit run examples.sessions:job --checkpoint results/sessions/checkpoint --spark 'local[2]'
    pytest examples/sessions.py                                       check the windows

A session ends after 30 minutes without a page. Each epoch is one commit of the table, so a row is
never written twice. This needs `pip install 'statekit[delta]'`.
"""

import datetime as dt
from pathlib import Path
from typing import NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/sessions")


class Visit(NamedTuple):
    user: str
    page: str
    bytes: int
    at: dt.datetime


job = sk.Job("sessions")
visits = job.source("visits", Visit, sk.sources.files(DATA / "visits.jsonl"))
sessions = visits.window(
    sk.session("30 minutes"), key="user", event_time="at", lateness="10 minutes"
).aggregate(pages=sk.Count(), bytes=sk.Sum("bytes"), last=sk.Last("page", by="at"))
sessions.sink("sessions", sk.sinks.delta(RESULTS / "table"))


def test_the_sessions_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(sessions, depth="quick")


if __name__ == "__main__":
    from deltalake import DeltaTable

    job.run(checkpoint=RESULTS / "checkpoint", drain=True)
    rows = DeltaTable(RESULTS / "table").to_pyarrow_table()
    for row in rows.sort_by([("user", "ascending"), ("start", "ascending")]).to_pylist():
        print(f"{row['user']:6} {row['start']:%H:%M} {row['end']:%H:%M} {row['pages']:3} pages")
