"""A whole application of Quix Streams: state in RocksDB with a changelog topic, at least once.

Arguments: the servers, the topic to read, the topic to write, the number of records, after which it
ends, and a scratch directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quixstreams import Application, State

from tests.bench.peers.jobs.handshake import bytes_in, done, ready

SESSION_MS = 6_000
"""A broker may let the first member of a group wait for others for a part of this time."""


def counting(order: dict[str, object], state: State) -> dict[str, object]:
    count = state.get("orders", 0) + 1
    state.set("orders", count)
    return {"customer": order["customer"], "orders": count}


def main(servers: str, topic: str, out: str, records: int, home: Path) -> None:
    application = Application(
        broker_address=servers,
        consumer_group=f"counts-{out}",
        auto_offset_reset="earliest",
        state_dir=home / "state",
        loglevel="WARNING",
        consumer_extra_config={"session.timeout.ms": SESSION_MS},
    )
    orders = application.topic(topic, value_deserializer="json")
    counts = application.topic(out, key_serializer="str", value_serializer="json")
    # A topic of one partition is not written again to group its records.
    grouped = application.dataframe(orders).group_by("customer")
    grouped.apply(counting, stateful=True).to_topic(counts)
    ready()
    application.run(count=records, collect=False)
    done(check=0, of="nothing", written=bytes_in(home))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
