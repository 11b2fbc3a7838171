"""What a recorder keeps of an epoch runs again as it ran, and changes nothing."""

from __future__ import annotations

import datetime as dt
import logging
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import statekit as sk
from statekit.cli.app import app
from statekit.recording.recorder import Recorder
from statekit.testing import Replay, replay
from tests.support.instants import at
from tests.support.places import ROOT


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


class Refund(NamedTuple):
    customer: str
    at: dt.datetime
    reason: str


class Rate(NamedTuple):
    currency: str
    dollars: int


IN_TIME: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "10 seconds"}


@sk.process(key="customer")
def spent(
    order: Order, total: sk.ValueState[int], seen: sk.ListState[int], by: sk.MapState[int, int]
) -> Iterator[tuple[str, int]]:
    total.update((total.get() or 0) + 100 // order.cents)
    seen.append(order.cents)
    by[order.cents] = len(seen)
    yield order.customer, total.get() or 0


@sk.process(**IN_TIME)
def quiet(order: Order, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    last.update(order.cents)
    ctx.timers.replace(order.at + dt.timedelta(seconds=5))
    yield order.customer, last.get() or 0


@quiet.on_timer
def is_quiet(
    timer: sk.Timer, ctx: sk.Context[str], last: sk.ValueState[int]
) -> Iterator[tuple[str, int]]:
    yield ctx.key, -(last.get() or 0)
    last.clear()


@sk.process(**IN_TIME, ordered=True)
def in_order(order: Order, first: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    if first.get() is None:
        first.update(order.cents)
    yield order.customer, first.get() or 0


@sk.process(key="customer")
def either(
    record: Order | Refund, seen: Annotated[sk.ReducingState[int], sk.Reduce("count")]
) -> Iterator[tuple[str, str, int]]:
    seen.add(1)
    yield record.customer, type(record).__name__, seen.get() or 0


@sk.process(key="customer")
def priced(order: Order, rates: sk.BroadcastState[str, int]) -> Iterator[tuple[str, int]]:
    yield order.customer, order.cents * rates.get("EUR", 1)


@priced.on_broadcast
def learn(rate: Rate, rates: sk.BroadcastState[str, int]) -> None:
    rates[rate.currency] = rate.dollars


def one(process: sk.Process[Any, Any, Any]) -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    job.source("orders", Order).process(process).sink("out")
    return job


def of_both_types() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    orders, refunds = job.source("orders", Order), job.source("refunds", Refund)
    orders.union(refunds).process(either).sink("out")
    return job


def with_rates() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    orders, rates = job.source("orders", Order), job.source("rates", Rate)
    orders.process(priced, broadcast=rates).sink("out")
    return job


def of_windows() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    orders = job.source("orders", Order)
    orders.window(sk.tumbling("10 s"), **IN_TIME).sum("cents").sink("out")
    return job


def of_totals() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    job.source("orders", Order).aggregate(key="customer", total=sk.Sum("cents")).sink("out")
    return job


JOBS = {
    "spent": one(spent),
    "quiet": one(quiet),
    "in_order": one(in_order),
    "either": of_both_types(),
    "priced": with_rates(),
    "windows": of_windows(),
    "totals": of_totals(),
}

customers = st.sampled_from(["ada", "bob", "cy", "di"])
seconds = st.integers(0, 60).map(at)
RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "orders": st.builds(Order, customers, seconds, st.integers(1, 9)),
    "refunds": st.builds(Refund, customers, seconds, st.sampled_from(["late", "broken"])),
    "rates": st.builds(Rate, st.just("EUR"), st.integers(1, 5)),
}


@pytest.mark.parametrize("name", sorted(JOBS))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), shards=st.integers(1, 4), size=st.integers(1, 5))
def test_each_epoch_runs_again_as_it_ran(
    name: str, data: st.DataObject, shards: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job, place = JOBS[name], tmp_path_factory.mktemp("replay")
    inputs = {
        source.name: data.draw(st.lists(RECORDS[source.name], max_size=12))
        for source in job.plan.sources
    }
    emitted: dict[int, list[Any]] = {}
    recorder = Recorder(place / "records")
    job.run(
        inputs,
        outputs={"out": lambda records, epoch: emitted.update({epoch: list(records)})},
        checkpoint=place / "checkpoint",
        parallelism=shards,
        epoch_size=size,
        retention=None,
        record=recorder,
    )
    before = files(place)
    recorded = {int(path.name) for path in (place / "records").glob("0*")}
    for epoch, records in emitted.items():
        if epoch in recorded:
            again = replay(job, place / "checkpoint", epoch=epoch, recorded_at=recorder)
            assert sorted(map(repr, again)) == sorted(map(repr, records))
    assert files(place) == before, "a replay changes nothing"


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


ORDERS = [
    Order("ada", at(1), 1),
    Order("bob", at(1), 2),
    Order("ada", at(2), 5),
    Order("cy", at(2), 2),
    Order("bob", at(3), 0),
    Order("ada", at(3), 4),
]


def failed(place: Path, **options: Any) -> Path:
    """A run whose epoch 2 fails at bob's second order. Returns its checkpoint."""
    recorder = options.pop("record", Recorder(place / "records"))
    with pytest.raises(sk.ProcessError, match="ZeroDivisionError"):
        JOBS["spent"].run(
            {"orders": ORDERS},
            checkpoint=place / "checkpoint",
            parallelism=3,
            epoch_size=2,
            record=recorder,
            **options,
        )
    return place / "checkpoint"


def test_a_failed_epoch_fails_again_with_the_states_that_it_had(tmp_path: Path) -> None:
    checkpoint = failed(tmp_path)
    again = Replay(JOBS["spent"], checkpoint, epoch=2, recorded_at=tmp_path / "records", key="bob")
    assert again.records == [ORDERS[4]]
    assert again.before("bob") == {"total": 50, "seen": [2], "by": {2: 1}}
    assert again.before("ada")["total"] == 120
    with pytest.raises(sk.ProcessError, match="ZeroDivisionError"):
        again.run()
    with pytest.raises(sk.ProcessError, match="ZeroDivisionError"):
        replay(JOBS["spent"], checkpoint, epoch=2, recorded_at=tmp_path / "records")


def test_a_key_runs_alone(tmp_path: Path) -> None:
    checkpoint = failed(tmp_path)

    def of(key: str | None, epoch: int = 1) -> list[Any]:
        return replay(
            JOBS["spent"], checkpoint, epoch=epoch, recorded_at=tmp_path / "records", key=key
        )

    assert of("ada") == [("ada", 120)]
    assert sorted(of(None)) == [("ada", 120), ("cy", 50)]
    with pytest.raises(sk.QueryError, match="no record of spent in epoch 1 has the key 'bob'"):
        of("bob")
    with pytest.raises(sk.StateTypeError, match="key"):
        of(5)  # type: ignore[arg-type]


def test_timers_of_other_key_groups_do_not_fire_beside_a_key(tmp_path: Path) -> None:
    job, place = JOBS["quiet"], tmp_path / "checkpoint"
    orders = [Order(name, at(second), 7) for second in (1, 40) for name in ("ada", "bob", "cy")]
    recorder = Recorder(tmp_path / "records")
    done = job.run({"orders": orders}, checkpoint=place, epoch_size=3, record=recorder, drain=False)
    job.run(
        {"orders": [*orders, Order("ada", at(50), 8)]},
        checkpoint=place,
        epoch_size=3,
        record=recorder,
        drain=False,
    )
    assert done.epochs == 2
    again = replay(job, place, epoch=2, recorded_at=recorder, key="ada")
    assert again == [("ada", 8), ("ada", -8)] or ("bob", -7) not in again


@pytest.mark.parametrize("key", ["ada", "bob"])
def test_the_written_test_needs_no_checkpoint(tmp_path: Path, key: str) -> None:
    checkpoint = failed(tmp_path)
    epoch = 1 if key == "ada" else 2
    text = Replay(
        JOBS["spent"], checkpoint, epoch=epoch, recorded_at=tmp_path / "records", key=key
    ).as_test()
    assert ("pytest.raises(ZeroDivisionError)" in text) == (key == "bob")
    names: dict[str, Any] = {"Order": Order, "spent": spent}
    exec(text, names)
    names[f"test_spent_in_epoch_{epoch}"]()


def test_a_function_that_cannot_be_called_alone_gets_a_test_that_replays(tmp_path: Path) -> None:
    job, recorder = JOBS["in_order"], Recorder(tmp_path / "records")
    job.run({"orders": ORDERS}, checkpoint=tmp_path / "checkpoint", record=recorder)
    text = Replay(job, tmp_path / "checkpoint", epoch=0, recorded_at=recorder, key="ada").as_test()
    assert "replay(job, " in text
    assert "key='ada'" in text


# --------------------------------------------------------------------------------- what is kept


def test_a_recorder_keeps_the_chosen_operators_and_shards(tmp_path: Path) -> None:
    every, some, none = (tmp_path / name for name in ("every", "some", "none"))
    failed(every)
    shards = sorted({shard_of(name) for name in kept(every)})
    assert len(shards) > 1
    failed(some, record=Recorder(some / "records", shards=shards[:1]))
    assert {shard_of(name) for name in kept(some)} == {shards[0]}
    failed(none, record=Recorder(none / "records", operators=["spent"], shards=[99]))
    assert not kept(none)


def shard_of(name: str) -> int:
    return int(name.split("/")[2].split("-")[0])


def kept(place: Path) -> list[str]:
    records = place / "records"
    paths = records.glob("0*/*/*") if records.exists() else ()
    return [str(path.relative_to(records)) for path in paths]


def test_a_sample_is_a_share_of_the_epochs_and_the_same_each_time() -> None:
    recorder = Recorder("/nowhere", sample=0.25)
    chosen = [epoch for epoch in range(4_000) if recorder.keeps("spent", epoch, 0)]
    assert 900 < len(chosen) < 1_100
    assert all(recorder.keeps("spent", epoch, 5) for epoch in chosen), "all shards of an epoch"


def test_the_oldest_epochs_go_when_there_is_too_much(tmp_path: Path) -> None:
    orders = [Order("ada", at(n), 1 + n % 9) for n in range(60)]
    recorder = Recorder(tmp_path / "records", limit=5_000)
    JOBS["spent"].run(
        {"orders": orders},
        checkpoint=tmp_path / "checkpoint",
        epoch_size=2,
        record=recorder,
        retention=None,
    )
    epochs = sorted({int(name.split("/")[0]) for name in kept(tmp_path)})
    assert 1 < len(epochs) < 20
    assert epochs[-1] == 29, "the newest stay"
    with pytest.raises(sk.QueryError, match=rf"it has those of the epochs {epochs[0]}, "):
        replay(JOBS["spent"], tmp_path / "checkpoint", epoch=5, recorded_at=recorder)


def test_a_shard_with_more_than_its_part_of_the_limit_cannot_be_replayed(tmp_path: Path) -> None:
    orders = [Order("ada", at(n), 1) for n in range(500)]
    recorder = Recorder(tmp_path / "records", limit="1KB")
    JOBS["spent"].run({"orders": orders}, checkpoint=tmp_path / "checkpoint", record=recorder)
    with pytest.raises(sk.QueryError, match="more than the limit allows"):
        replay(JOBS["spent"], tmp_path / "checkpoint", epoch=0, recorded_at=recorder)


def test_a_recorder_that_cannot_write_does_not_stop_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "records")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{0:020d}").write_text("in the way")
    with caplog.at_level(logging.WARNING, "statekit.recorder"):
        done = JOBS["spent"].run(
            {"orders": ORDERS[:4]}, checkpoint=tmp_path / "checkpoint", record=recorder
        )
    assert done.epochs >= 1
    assert "are not recorded any further" in caplog.text


# -------------------------------------------------------------------------- what cannot be replayed


def test_epochs_that_the_checkpoint_has_not_are_refused(tmp_path: Path) -> None:
    checkpoint, records = failed(tmp_path), tmp_path / "records"
    with pytest.raises(sk.QueryError, match=r"has begun no epoch 9: .* or 2 if the next"):
        replay(JOBS["spent"], checkpoint, epoch=9, recorded_at=records)
    (checkpoint / "epochs" / f"{0:020d}.json").unlink()
    with pytest.raises(sk.QueryError, match="has no states from before epoch 1"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=records)


def test_other_names_are_refused(tmp_path: Path) -> None:
    checkpoint, records = failed(tmp_path), tmp_path / "records"
    with pytest.raises(sk.StateTypeError, match="no operator 'spend'; it has spent"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=records, operator="spend")
    with pytest.raises(sk.QueryError, match="no records of shard 7"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=records, shard=7)
    with pytest.raises(sk.QueryError, match=r"there are no records at .*elsewhere"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=tmp_path / "elsewhere")
    with pytest.raises(sk.StateTypeError, match="give the number of an epoch"):
        replay(JOBS["spent"], checkpoint, epoch="1", recorded_at=records)  # type: ignore[arg-type]
    with pytest.raises(sk.StateTypeError, match="takes the job that recorded"):
        replay(spent, checkpoint, epoch=1, recorded_at=records)  # type: ignore[arg-type]


def test_a_recorder_that_is_none_or_names_other_operators_is_refused(tmp_path: Path) -> None:
    run = JOBS["spent"].run
    with pytest.raises(sk.StateTypeError, match=r"give a recorder, as sk\.Recorder"):
        run({"orders": ORDERS}, record=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(sk.StateTypeError, match="the job has no 'spend', it has spent"):
        run({"orders": ORDERS}, record=Recorder(tmp_path, operators=["spend"]))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_damaged_records_are_an_error(tmp_path: Path, damage: str) -> None:
    checkpoint = failed(tmp_path)
    for name in kept(tmp_path):
        path = tmp_path / "records" / name
        data = path.read_bytes()
        changed = {
            "flip": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
            "cut": data[: len(data) // 2],
            "empty": b"",
            "text": b"[1, 2]\n",
        }[damage]
        path.write_bytes(changed)
    with pytest.raises(sk.CorruptCheckpointError, match=r"damaged"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=tmp_path / "records")


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    checkpoint = failed(tmp_path)
    for name in kept(tmp_path):
        if name.endswith(".000000"):
            (tmp_path / "records" / name).unlink()
    with pytest.raises(sk.CorruptCheckpointError, match="lacks part 0"):
        replay(JOBS["spent"], checkpoint, epoch=1, recorded_at=tmp_path / "records")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": 0}, "give a share of the epochs"),
        ({"sample": 1.5}, "give a share of the epochs"),
        ({"operators": "spent"}, "give a list, or None for all"),
        ({"shards": 3}, "give a list, or None for all"),
        ({"limit": "much"}, "is no size"),
        ({"limit": 0}, "at least 1 byte"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        Recorder("/nowhere", **options)


# ------------------------------------------------------------------------------- the command line

SCRIPT = """
    import sys
    from collections.abc import Iterator
    from typing import NamedTuple
    import statekit as sk

    class Order(NamedTuple):
        customer: str
        cents: int

    class Refund(NamedTuple):
        customer: str

    @sk.process(key="customer")
    def spent(record: Order | Refund, total: sk.ValueState[int]) -> Iterator[int]:
        match record:
            case Order():
                total.update((total.get() or 0) + 100 // record.cents)
            case Refund():
                total.clear()
        yield total.get() or 0

    def job() -> sk.Job:
        job = sk.Job("shop")
        orders, refunds = job.source("orders", Order), job.source("refunds", Refund)
        orders.union(refunds).process(spent).sink("out")
        return job

    if __name__ == "__main__":
        orders = [Order("ada", 5), Order("ada", 4), Order("ada", 0)]
        job().run(
            {"orders": orders, "refunds": [Refund("bob")]},
            checkpoint=sys.argv[1],
            epoch_size=1,
            record=sk.Recorder(f"{sys.argv[1]}/recorded"),
        )
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a script whose third epoch failed, in the directory of the script."""
    (tmp_path / "shop_script.py").write_text(textwrap.dedent(SCRIPT))
    ran = subprocess.run(
        [sys.executable, "shop_script.py", "checkpoint"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ZeroDivisionError" in ran.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_script", raising=False)
    return tmp_path / "checkpoint"


def command(*arguments: str, given: str = "") -> tuple[int, str]:
    ran = CliRunner().invoke(app, ["replay", "checkpoint", *arguments], input=given)
    return ran.exit_code, ran.output + str(ran.exception or "")


def test_the_command_replays_what_a_script_recorded_with_classes_of_its_own(script: Path) -> None:
    status, shown = command("--epoch", "1", "--app", "shop_script:job", "--key", "ada")
    assert status == 0, shown
    assert "1 record of spent in epoch 1" in shown
    assert "\n45\n" in shown
    assert "given['total'].update(20)" in shown


def test_the_command_shows_outputs_whose_repr_fails(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise OSError

    monkeypatch.setattr(Replay, "run", lambda _: [Broken()])
    status, shown = command("--epoch", "1", "--app", "shop_script:job")
    assert status == 0, shown
    assert "<Broken, whose repr() fails with OSError>" in shown


def test_the_command_opens_a_debugger_where_the_function_fails(script: Path) -> None:
    status, shown = command(
        "--epoch", "2", "--app", "shop_script:job", "--pdb", given="p record.cents\nq\n"
    )
    assert status != 0
    assert re.search(r"\(Pdb\) 0\b", shown), shown
    assert "ZeroDivisionError" in shown


def test_a_text_that_may_be_two_keys_finds_the_one_with_records(tmp_path: Path) -> None:
    @sk.process(key="number")
    def numbered(record: dict[str, Any], seen: sk.ValueState[int]) -> Iterator[Any]:
        yield record["number"]

    job = sk.Job("numbers")
    job.source("records", dict).process(numbered).sink("out")
    recorder = Recorder(tmp_path / "records")
    job.run(
        {"records": [{"number": "42"}, {"number": 7}]},
        checkpoint=tmp_path / "checkpoint",
        record=recorder,
    )
    found: dict[Any, list[Any]] = defaultdict(list)
    for key in ("42", 7):
        found[key] = replay(job, tmp_path / "checkpoint", epoch=0, recorded_at=recorder, key=key)
    assert found == {"42": ["42"], 7: [7]}
