"""Bytewax from Kafka to Kafka: its own source and sink, `stateful_map` and its recovery store.

Arguments: the servers, the topic to read, the topic to write, the number of its records, which end
the job by themselves, a scratch directory, and the seconds between snapshots.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bytewax.operators as op
import msgspec
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow

from tests.bench.peers.jobs.bytewax_recovery import run_with_recovery
from tests.bench.peers.jobs.handshake import done


class Order(msgspec.Struct):
    customer: str
    cents: int
    item: str


def counting(count: int | None, _: Order) -> tuple[int, int]:
    count = (count or 0) + 1
    return count, count


def message(counted: tuple[str, int]) -> KafkaSinkMessage[bytes, bytes]:
    customer, count = counted
    value = msgspec.json.encode({"customer": customer, "orders": count})
    return KafkaSinkMessage(customer.encode(), value)


def main(servers: str, topic: str, out: str, home: Path, every_s: str) -> None:
    decode = msgspec.json.Decoder(Order).decode
    flow = Dataflow("counts")
    messages = op.input("messages", flow, KafkaSource([servers], [topic], tail=False))
    orders = op.map("orders", messages, lambda message: decode(message.value))
    keyed = op.key_on("customers", orders, lambda order: order.customer)
    counts = op.stateful_map("counts", keyed, counting)
    op.output("sink", op.map("values", counts, message), KafkaSink([servers], out))
    written = run_with_recovery(flow, home, every_s)
    done(check=0, of="nothing", written=written)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[5]), sys.argv[6])
