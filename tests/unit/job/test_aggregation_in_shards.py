"""Combined rows of many partitions, batches and epochs come to what plain Python makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend.interface import Backend, MemoryBackend, StateSize
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint.job_file import EXPIRY
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.functions.process import Process
from statekit.job.per_key.aggregation import aggregation
from statekit.keygroup import key_group, pack_group
from statekit.records.keyed_batch import KeyedBatch
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordType
from statekit.runtime.task import ShardTask
from statekit.spark.worker.rows import ARRIVAL, GROUP, batches_of_rows
from statekit.watermark import BEGINNING
from tests.support.mutations import Put, batch_of
from tests.unit.job.test_built_in_aggregates import AGGREGATES, SALES, Sale, model, same

GROUPS = 4
HOUR = 3_600_000_000
FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Shard:
    """The one shard of a process function, over a backend."""

    def __init__(self, declared: Process[Any, Any, Any], backend: Backend) -> None:
        self.declared = declared
        self.backend = backend
        self.epochs = 0
        self.held = {spec.name: StateSize(0, 0) for spec in declared.states}
        self.spilled = 0

    def epoch(
        self, chunks: Iterator[KeyedBatch], now_us: int = 0, watermark_us: int = BEGINNING
    ) -> list[Any]:
        """What an epoch over chunks puts out."""
        base = ShardState(first_group=0, last_group=GROUPS - 1)
        plan = ShardPlan("c", "op", 0, self.epochs, base, None, watermark_us, BEGINNING, now_us)
        self.task = task = ShardTask(self.declared, plan, self.backend, self._spill)
        outputs = [output for outputs in task.run_all(chunks) for output in outputs]
        outputs += [output for outputs in task.fire() for output in outputs]
        for name, added in task.finish().items():
            rows, size = self.held.get(name, StateSize(0, 0))
            self.held[name] = StateSize(rows + added.rows, size + added.bytes)
        self.backend.write(task.batch)
        self.epochs += 1
        self.records_in = task.records_by_input[0]
        assert task.records_out == len(outputs)
        return outputs

    def _spill(self, batch: Batch) -> None:
        self.spilled += 1
        self.backend.write(batch)


def prefix_of(declared: Process[Any, Any, Any], key: Any) -> bytes:
    return pack_group(key_group(key, GROUPS)) + declared.key_codec.encode(key)


def shuffled(
    declared: Process[Any, Any, Any],
    partitions: list[list[Any]],
    size: int,
    late_us: int = BEGINNING,
    *,
    combines: bool = True,
) -> list[pa.RecordBatch]:
    """Batches as a worker is given them: combined in each partition, then sorted by their keys."""
    (record,) = declared.record_type.members
    columns_of = OutputType(record.cls, where="tests").to_batch
    tables = [pa.Table.from_batches([columns_of(part)]) for part in partitions if part]
    if not tables:
        return []
    if (combiner := declared.traits.combiner) is not None and combines:
        tables = [combiner.rows(table, late_us) for table in tables]
    rows = pa.concat_tables(tables)
    columns = [rows.column(name).to_pylist() for name in declared.key]
    keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    order = sorted(range(len(keys)), key=lambda at: prefix_of(declared, keys[at]))
    groups = pa.array([key_group(key, GROUPS) for key in keys], pa.int32())
    rows = rows.add_column(0, GROUP, groups).append_column(ARRIVAL, pa.array(range(len(keys))))
    batches = rows.take(order).combine_chunks().to_batches(max_chunksize=size)
    if combiner is not None and not combines:
        return list(combiner.combined_sorted(batches, late_us))
    return list(batches)


class Kept:
    """What plain Python keeps of one key: per aggregate the records that it knows, and since when.

    Parameters:
        ttl: how long that is, and whether reading begins it anew; None for ever.
    """

    def __init__(self, ttl: sk.TTL | None) -> None:
        self._ttl = ttl
        self._sales: dict[str, list[Sale]] = {name: [] for name in AGGREGATES}
        self._written = dict.fromkeys(AGGREGATES, 0)

    def add(self, sales: list[Sale], now_us: int) -> None:
        for name, of in AGGREGATES.items():
            held = self._sales[name]
            if self._ttl is not None and self._written[name] + HOUR <= now_us:
                held.clear()
            counts = isinstance(of, sk.Count)
            added = [s for s in sales if counts or getattr(s, str(of.field)) is not None]
            held += added
            if added or (held and self._ttl is not None and self._ttl.refresh == "read"):
                self._written[name] = now_us

    @property
    def known(self) -> dict[str, Any]:
        return {name: model(sales)[name] if sales else None for name, sales in self._sales.items()}


KINDS = [None, sk.TTL("1 hour"), sk.TTL("1 hour", refresh="read")]


@FEW
@given(
    epochs=st.lists(
        st.tuples(st.sampled_from([1, HOUR // 2, HOUR]), st.lists(st.lists(SALES), max_size=3)),
        max_size=5,
    ),
    key=st.sampled_from([("shop",), ("shop", "number")]),
    size=st.sampled_from([1, 2, 3, 100]),
    at_once=st.sampled_from([1, 2, 100]),
    batch_rows=st.sampled_from([1, 20, 65_536]),
    on_disk=st.booleans(),
    ttl=st.sampled_from(KINDS),
    combines=st.booleans(),
)
def test_results_states_and_sizes_are_those_of_plain_python(
    epochs: list[tuple[int, list[list[Sale]]]],
    key: tuple[str, ...],
    size: int,
    at_once: int,
    batch_rows: int,
    on_disk: bool,
    ttl: sk.TTL | None,
    combines: bool,
) -> None:
    record = RecordType.of(Sale, where="tests")
    declared = aggregation(record, key=key, aggregates=AGGREGATES, ttl=ttl)
    families = declared.families if ttl is None else (*declared.families, EXPIRY)
    kept: dict[Any, Kept] = {}
    now_us = 0
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as home:
        patch.setattr("statekit.runtime.key_iteration.KEYS_MAX", 16)
        patch.setattr("statekit.runtime.key_iteration.COLUMN_KEYS_MAX", at_once)
        patch.setattr("statekit.backend.mutation.BATCH_ROWS_MAX", batch_rows)
        backend = RocksBackend(home, families) if on_disk else MemoryBackend(families)
        shard = Shard(declared, backend)
        for later_us, partitions in epochs:
            now_us += later_us
            arrived: dict[Any, list[Sale]] = {}
            for sale in (sale for sales in partitions for sale in sales):
                found = tuple(getattr(sale, name) for name in key)
                arrived.setdefault(found, []).append(sale)
            batches = shuffled(declared, partitions, size, combines=combines)
            results = shard.epoch(batches_of_rows(declared, iter(batches), GROUPS), now_us)
            assert not results or shard.records_in == sum(map(len, partitions))
            assert sorted(map(str, arrived)) == sorted(str(r[: len(key)]) for r in results)
            for found, sales in arrived.items():
                kept.setdefault(found, Kept(ttl)).add(sales, now_us)
            for result in results:
                expected = kept[result[: len(key)]].known
                assert all(same(getattr(result, n), v) for n, v in expected.items()), expected
            assert shard.held == {name: backend.sizes()[name] for name in AGGREGATES}
        backend.close()


class Order(NamedTuple):
    shop: str
    cents: int


def totals(**options: Any) -> Process[Any, Any, Any]:
    record = RecordType.of(Order, where="tests")
    aggregates = {"orders": sk.Count(), "cents": sk.Sum("cents"), "most": sk.Max("cents")}
    return aggregation(record, key="shop", aggregates=aggregates, **options)


def chunk(orders: list[Order]) -> Iterator[KeyedBatch]:
    """One row for each order, in this order."""
    shops = [order.shop for order in orders]
    cents = [order.cents for order in orders]
    groups = [key_group(shop, GROUPS) for shop in shops]
    yield KeyedBatch(shops, groups, shops, [shops, [1] * len(orders), cents, cents])


def in_memory(**options: Any) -> Shard:
    declared = totals(**options)
    return Shard(declared, MemoryBackend(declared.families))


def test_keys_that_come_back_find_their_state() -> None:
    shard = in_memory()
    orders = [Order(shop, cents) for cents, shop in enumerate("abcabbca")]
    assert shard.epoch(chunk(orders)) == [
        ("a", 1, 0, 0),
        ("b", 1, 1, 1),
        ("c", 1, 2, 2),
        ("a", 2, 3, 3),
        ("b", 2, 5, 4),
        ("b", 3, 10, 5),
        ("c", 2, 8, 6),
        ("a", 3, 10, 7),
    ]


def in_order(declared: Process[Any, Any, Any], count: int) -> list[Order]:
    orders = [Order(f"shop {number}", number) for number in range(count)]
    return sorted(orders, key=lambda order: prefix_of(declared, order.shop))


def test_rows_of_partitions_become_one_for_each_key_and_are_written_together() -> None:
    shard = in_memory()
    orders = in_order(shard.declared, 12_000)
    batches = shuffled(shard.declared, [orders, orders], size=10_000)
    found = shard.epoch(batches_of_rows(shard.declared, iter(batches), GROUPS))
    assert found == [(order.shop, 2, 2 * order.cents, order.cents) for order in orders]
    assert shard.spilled == 0


def test_fewer_keys_are_taken_at_once_where_their_rows_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Text(NamedTuple):
        key: int
        text: str

    record = RecordType.of(Text, where="tests")
    declared = aggregation(record, key="key", aggregates={"last": sk.Max("text")})
    shard = Shard(declared, MemoryBackend(declared.families))
    sizes: list[int] = []
    put_all = Batch.put_all

    def noted(batch: Batch, state: str, keys: Any, values: Any) -> int:
        sizes.append(len(keys))
        return put_all(batch, state, keys, values)

    monkeypatch.setattr(Batch, "put_all", noted)
    for length in (1, 100_000):
        records = [Text(key, "x" * length) for key in range(100)]
        records.sort(key=lambda record: prefix_of(declared, record.key))
        shard.epoch(batches_of_rows(declared, iter(shuffled(declared, [records], 1000)), GROUPS))
    few, large = sizes[: sizes.index(max(sizes)) + 1], sizes[len(sizes) // 2 :]
    assert max(few) > 16
    assert max(large[2:]) <= 8


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_sum_that_overflows_names_its_state_and_key(count: int) -> None:
    shard = in_memory()
    orders = in_order(shard.declared, count)
    shard.epoch(chunk([order._replace(cents=-(2**63)) for order in orders]))
    wrong = orders[count // 2].shop
    added = [order._replace(cents=-1 if order.shop == wrong else 1) for order in orders]
    text = rf"state 'cents' of operator 'op' at key '{wrong}' in epoch 1 cannot hold"
    with pytest.raises(sk.StateTypeError, match=text):
        shard.epoch(chunk(added))


def test_a_row_that_does_not_read_names_its_state_and_key() -> None:
    shard = in_memory()
    orders = in_order(shard.declared, 100)
    shard.epoch(chunk(orders))
    wrong = prefix_of(shard.declared, orders[40].shop)
    shard.backend.write(batch_of([Put("most", wrong, b"\xc1")]))
    text = rf"state 'most' of operator 'op' at key '{orders[40].shop}'.*earlier epoch"
    with pytest.raises(sk.CorruptCheckpointError, match=text):
        shard.epoch(chunk(orders))


def test_a_key_that_cannot_be_one_is_named_with_its_row() -> None:
    orders = [Order("a", 1), Order("\ud800", 2)]
    with pytest.raises(sk.ProcessError, match=r"\(shop\) = '\\ud800' of record .* cannot be a key"):
        in_memory().epoch(chunk_of_group_0(orders))


def chunk_of_group_0(orders: list[Order]) -> Iterator[KeyedBatch]:
    """The same for keys that have no key group."""
    ((made),) = chunk([order._replace(shop="a") for order in orders])
    shops = [order.shop for order in orders]
    yield made._replace(tokens=shops, keys=shops, records=[shops, *made.records[1:]])


@dataclasses.dataclass
class Checked:
    shop: str
    cents: int

    def __post_init__(self) -> None:
        if self.cents == 70:
            raise ValueError("70 is not allowed")


def test_a_class_of_the_users_that_refuses_a_result_fails_with_its_key() -> None:
    shard = in_memory(into=Checked)
    orders = in_order(shard.declared, 100)
    with pytest.raises(sk.ProcessError, match=r"at key 'shop 70' .*ValueError: 70 is not allowed"):
        shard.epoch(chunk(orders))
    assert shard.epoch(chunk(orders[:5])) == [Checked(*order) for order in orders[:5]]


@dataclasses.dataclass
class Moody:
    shop: str
    made: int = 0

    def __post_init__(self) -> None:
        _MADE.append(self.shop)
        if len(_MADE) == 3:
            raise ZeroDivisionError("once")


_MADE: list[str] = []


def test_a_call_that_fails_for_many_keys_and_for_none_alone_fails() -> None:
    shard = in_memory(into=Moody)
    with pytest.raises(
        sk.ProcessError, match="ZeroDivisionError: once; it was called with the keys"
    ):
        shard.epoch(chunk(in_order(shard.declared, 10)))
