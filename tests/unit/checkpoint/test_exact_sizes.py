"""What manifests say a shard holds is what it holds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness

OPERATIONS = ("add", "blind", "append", "put", "drop", "clear")


@sk.process(key="key")
def touch(
    record: dict[str, Any],
    value: sk.ValueState[str],
    items: sk.ListState[str],
    entries: sk.MapState[str, str],
) -> None:
    what = record["what"]
    if what == "add":
        value.update((value.get() or "") + "x")
    elif what == "blind":
        value.update("yy")
    elif what == "append":
        items.extend(["a", "bb"])
    elif what == "put":
        entries[record["entry"]] = "v" * len(record["entry"])
    elif what == "drop":
        value.clear()
        entries.pop(record["entry"], None)
    else:
        items.clear()
        entries.clear()


records = st.builds(
    lambda key, what, entry: {"key": key, "what": what, "entry": entry},
    st.sampled_from("abcdef"),
    st.sampled_from(OPERATIONS),
    st.sampled_from(["", "e", "eee"]),
)
epochs = st.lists(st.tuples(st.lists(records, max_size=12), st.integers(1, 5)), max_size=6)


@settings(max_examples=40, deadline=None)
@given(epochs)
def test_manifests_count_exactly_whatever_the_parallelism(
    planned: list[tuple[list[dict[str, str]], int]],
) -> None:
    with tempfile.TemporaryDirectory() as home:
        checkpoint = Path(home) / "checkpoint"
        for batch, parallelism in planned:
            Harness(touch, parallelism=parallelism, checkpoint=checkpoint).send(*batch)
        if not planned:
            return
        reader = CheckpointReader(checkpoint)
        sizes = counted_sizes(reader, "touch").states
        held = reader.manifest.operators["touch"]
        for name, size in sizes.items():
            assert held.rows.get(name, 0) == size.rows
            assert held.bytes.get(name, 0) == size.bytes
