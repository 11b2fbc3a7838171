"""The page about Kafka and the console is true: its examples run against a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import statekit as sk
from tests.support.kafka_broker import KafkaBroker
from tests.support.places import DOCS

PAGE = (DOCS / "guide" / "sinks-kafka.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_examples_write_a_topic_and_a_table(
    kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "__name__": "page"}
    given |= {"servers": kafka.servers, "place": tmp_path}
    for example in EXAMPLES:
        exec(compile(example, "sinks-kafka.md", "exec", dont_inherit=True), given)
    found = {(record.key, record.value) for record in kafka.records("spent")}
    assert found == {
        (b"ada", b'{"customer":"ada","cents":500}'),
        (b"ada", b'{"customer":"ada","cents":700}'),
        (b"bob", b'{"customer":"bob","cents":300}'),
    }
    assert all(value.decode() in PAGE for _, value in found if value is not None)
    assert "spent, epoch 0: 3 rows" in capsys.readouterr().out
