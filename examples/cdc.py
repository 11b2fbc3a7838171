"""Change data capture: a table of a lake that follows a table of a database.

    python examples/cdc.py                                            in this process
    statekit run examples.cdc:job --checkpoint results/cdc/checkpoint --spark 'local[2]'
    pytest examples/cdc.py                                            check the function

Changes may arrive twice and out of order, as connectors and brokers deliver them. The function
keeps the position of the last change of each row, and passes on those after it. The sink upserts
and deletes, one commit per epoch. This needs `pip install 'statekit[delta]'`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/cdc")


class Changed(NamedTuple):
    op: Literal["insert", "update", "delete"]
    position: int
    id: int
    name: str
    city: str


class Customer(NamedTuple):
    id: int
    name: str
    city: str
    is_deleted: bool


@sk.process(key="id")
def newest(changed: Changed, position: sk.ValueState[int]) -> Iterator[Customer]:
    if changed.position > (position.get() or 0):
        position.update(changed.position)
        yield Customer(changed.id, changed.name, changed.city, changed.op == "delete")


job = sk.Job("cdc")
changes = job.source("changes", Changed, sk.sources.files(DATA / "changes.jsonl"))
changes.process(newest).sink(
    "customers", sk.sinks.delta(RESULTS / "table", mode="upsert", key="id", delete="is_deleted")
)


def test_the_customers_depend_on_no_crash_and_no_parallelism() -> None:
    from statekit.testing import check

    check(newest, depth="quick")


if __name__ == "__main__":
    from deltalake import DeltaTable

    job.run(checkpoint=RESULTS / "checkpoint")
    for row in DeltaTable(RESULTS / "table").to_pyarrow_table().sort_by("id").to_pylist():
        print(row)
