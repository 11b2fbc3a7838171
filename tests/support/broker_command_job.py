"""A job for commands that reads a topic of Kafka, and gives up after a second without a broker."""

from __future__ import annotations

import statekit as sk
from tests.support.shop_command_job import Order, total

source = sk.sources.kafka("127.0.0.1:9", "orders", retry_seconds=1, find_new_seconds=1)

job = sk.Job("shop")
job.source("orders", Order, source).process(total).sink("totals", sk.sinks.json_lines("totals"))
