"""The page about Kafka as a source is true: its examples run, and write what they should."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import statekit as sk
from tests.support.kafka_broker import KafkaBroker
from tests.support.places import DOCS


def test_the_examples_read_a_topic(tmp_path: Path, kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    orders = [("ada", 500), ("bob", 300), ("ada", 200)]
    kafka.produce(topic, [json.dumps({"customer": of, "cents": cents}) for of, cents in orders])
    page = (DOCS / "guide" / "sources-kafka.md").read_text()
    example = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    example = example.replace("localhost:9092", kafka.servers).replace(
        '"orders", f', f'"{topic}", f'
    )
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "datetime": datetime}
    exec(compile(example, "page", "exec", dont_inherit=True), {**given, "place": tmp_path})
    files = (tmp_path / "spent").glob("*.jsonl")
    lines = [line for path in files for line in path.read_text().splitlines()]
    spent = sorted(tuple(json.loads(line).values()) for line in lines)
    assert spent == [("ada", 500), ("ada", 700), ("bob", 300)]
