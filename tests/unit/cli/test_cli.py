"""The command line, run as a user runs it: in a process of its own, over real checkpoints."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
import typer

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.cli.app import app
from statekit.codec.json_form import instant_text
from statekit.errors import QueryError, StateTypeError
from statekit.job.options import RunOptions
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.uploader import uploader
from tests.support.command_line import statekit
from tests.support.counting_job import entries, tally_job
from tests.support.invoked import invoked
from tests.support.places import STORED
from tests.support.timeouts import PATIENCE_S


class Visit(NamedTuple):
    carrier: str
    number: int | None
    airport: str
    at: datetime


@sk.process(key=("carrier", "number"))
def follow(
    visit: Visit,
    last: sk.ValueState[Visit],
    airports: sk.MapState[str, int],
    seen: sk.ListState[datetime],
    total: Annotated[sk.ReducingState[int], sk.Reduce("count")],
    odd: Annotated[sk.ValueState[complex], sk.PickleCodec()],
) -> None:
    last.update(visit)
    airports[visit.airport] = airports.get(visit.airport, 0) + 1
    seen.append(visit.at)
    total.add(1)
    odd.update(1j)


MAIN = "from statekit.cli import main; main()"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "checkpoint"
    harness = Harness(follow, parallelism=2, checkpoint=path)
    harness.send(Visit("UA", 1545, "EWR", AT))
    harness.send(Visit("UA", 1545, "JFK", AT), Visit("AA", None, "LGA", AT))
    return path


def test_the_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "statekit.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, f"statekit {version('statekit')}\n")


def test_commands_are_completed_by_the_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'statekit'; " + MAIN],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={
            **os.environ,
            "_STATEKIT_COMPLETE": "complete_bash",
            "COMP_WORDS": "statekit resc",
            "COMP_CWORD": "1",
        },
    )
    assert done.stdout.split() == ["rescale"]


def test_inspect_shows_one_operator(tmp_path: Path) -> None:
    stored = STORED / "all-kinds"
    done = statekit("inspect", stored, "--operator", "in_order")
    assert done.returncode == 0
    assert "operator in_order by account" in done.stdout
    assert "ledger" not in done.stdout
    data = json.loads(statekit("inspect", stored, "--operator", "in_order", "--json").stdout)
    assert [operator["name"] for operator in data["operators"]] == ["in_order"]
    unknown = statekit("inspect", stored, "--operator", "nobody")
    assert unknown.returncode == 1
    assert "nobody" in unknown.stderr
    assert "ledger" in unknown.stderr, "it names those that there are"
    savepoint = statekit("inspect", stored / "savepoints/s", "--operator", "in_order")
    assert savepoint.returncode == 2


def test_inspect_fits_a_terminal_of_80_columns() -> None:
    stored = STORED / "all-kinds"
    lines = statekit("inspect", stored, columns=80).stdout.splitlines()
    assert max(len(line) for line in lines if str(stored) not in line) <= 80
    text = " ".join("\n".join(lines).replace("│", " ").split())
    for part in ("value[AccountNow{owner: str, events: int}],", "value[pickle[complex], pickled]"):
        assert part in text, "types are broken between words only"


def test_get_prints_a_state_as_json(checkpoint: Path) -> None:
    key = '["UA", 1545]'
    for state, held in {
        "airports": {"EWR": 1, "JFK": 1},
        "seen": [instant_text(AT), instant_text(AT)],
        "total": 2,
        "last": {"carrier": "UA", "number": 1545, "airport": "JFK", "at": instant_text(AT)},
    }.items():
        done = statekit("get", checkpoint, "follow", state, key)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == held


def test_get_finds_a_key_with_a_null_field(checkpoint: Path) -> None:
    done = statekit("get", checkpoint, "follow", "airports", '["AA", null]')
    assert json.loads(done.stdout) == {"LGA": 1}


def test_get_of_a_key_without_state_is_null_or_empty(checkpoint: Path) -> None:
    assert json.loads(statekit("get", checkpoint, "follow", "last", '["XX", 1]').stdout) is None
    assert json.loads(statekit("get", checkpoint, "follow", "seen", '["XX", 1]').stdout) == []


def test_get_reads_an_earlier_epoch(checkpoint: Path) -> None:
    done = statekit("get", checkpoint, "follow", "airports", '["UA", 1545]', "--epoch", 0)
    assert json.loads(done.stdout) == {"EWR": 1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["get", "{}", "nobody", "last", "x"], "has no operator 'nobody': it has follow"),
        (["get", "{}", "follow", "nothing", "x"], "has no state 'nothing': it has last, airports"),
        (["get", "{}", "follow", "last", "UA"], "StateTypeError"),
        (["get", "{}", "follow", "last", '["UA", 1]', "--epoch", "9"], "has no epoch 9"),
        (["get", "{}/nowhere", "follow", "last", "x"], "there is no checkpoint at"),
        (["inspect", "{}/data"], "has no committed epoch"),
        (["get", "{}", "follow", "odd", '["UA", 1545]'], "allow"),
    ],
)
def test_an_error_is_one_message_with_advice(checkpoint: Path, words: list[str], told: str) -> None:
    done = statekit(*(word.replace("{}", str(checkpoint)) for word in words))
    assert done.returncode == 1
    assert done.stdout == ""
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pickled_state_is_read_only_when_asked_for(checkpoint: Path) -> None:
    done = statekit("get", checkpoint, "follow", "odd", '["UA", 1545]', "--allow-pickle")
    assert json.loads(done.stdout) == "1j"


def test_wrong_usage_ends_with_two() -> None:
    assert statekit("get").returncode == 2
    assert statekit("inspect", "x", "--epoch", "soon").returncode == 2
    assert statekit("fly").returncode == 2


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = invoked(command, "--help", env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "Example" in done.stdout
    assert f"statekit {command}" in done.stdout
    assert COMMANDS[command].callback.__module__ != "statekit.cli.app"


def test_inspect_shows_job_operators_states_types_sizes_epochs_and_skew(checkpoint: Path) -> None:
    done = statekit("inspect", checkpoint)
    assert (done.returncode, done.stderr) == (0, "")
    for told in (
        "job follow",
        "epoch 1 of 0–1 (2 kept)",
        "parallelism 2, 128 key groups",
        "operator follow by carrier: str, number: int | None ← records",
        "map[str → int]",
        "list[datetime]",
        "reducing[int]",
        "skew of follow",
        "0–63",
    ):
        assert told in done.stdout


def test_lines_of_inspect_are_as_long_as_they_are(checkpoint: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 90) / ("b" * 90)
    shutil.copytree(checkpoint, deep)
    lines = statekit("inspect", deep, "--fast").stdout.splitlines()
    assert any(line.startswith("job follow") and line.endswith(deep.as_uri()) for line in lines)


def test_inspect_counts_the_same_from_manifests_and_from_rows(checkpoint: Path) -> None:
    counted = json.loads(statekit("inspect", checkpoint, "--json").stdout)
    trusted = json.loads(statekit("inspect", checkpoint, "--json", "--fast").stdout)
    assert counted == trusted
    rows = {state["name"]: state["rows"] for state in counted["operators"][0]["states"]}
    assert rows == {"last": 2, "airports": 3, "seen": 3, "total": 2, "odd": 2}


@sk.process(key="key", event_time="at", lateness="90 minutes")
def timed(record: dict[str, Any], ctx: sk.Context, seen: sk.ValueState[int]) -> None:
    seen.update(1)
    ctx.timers.set(record["at"])


@timed.on_timer
def ring(timer: sk.Timer) -> None: ...


def test_inspect_shows_whether_bases_are_taken_and_how_long_restores_take(tmp_path: Path) -> None:
    copies = DiskCopies(tmp_path / "copies", bases=sk.BaseOptions(replay_seconds=0))
    runner = LocalRunner(
        tally_job(8).plan, Repository(tmp_path / "c"), copies, RunOptions(parallelism=2)
    )

    def restore_after(epochs: int) -> Any:
        for _ in range(epochs):
            runner.epoch({"records": entries(runner.coordinator.epoch, 40)})
        assert uploader().drain(60)
        told = json.loads(statekit("inspect", tmp_path / "c", "--fast", "--json").stdout)
        return told["operators"][0]["restore"]

    first = restore_after(1)
    assert (first["shards"], first["based"], first["change_files"]) == (2, 0, 2)
    assert 0 < first["changed"] == first["uploaded"]
    restore_after(10)
    later = restore_after(1)  # which names what was uploaded behind the last one
    assert later["based"] == 2
    assert later["longest"] < 12, "change files that are in a base are not applied"
    assert first["seconds"] == pytest.approx(0.002, abs=0.001), "one small file"
    assert first["uploaded"] < later["uploaded"] < 2 * later["changed"]
    told = statekit("inspect", tmp_path / "c", "--fast").stdout
    assert "restore: 2 of 2 shards from a base; change files to apply: " in told


def test_inspect_shows_how_far_event_time_has_come(tmp_path: Path) -> None:
    job = sk.Job("timed")
    job.source("records", dict).process(timed)
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    hours = [0, 5, 1, 6]
    given = [{"key": "a", "at": noon + dt.timedelta(hours=n)} for n in hours]
    job.run({"records": given}, checkpoint=tmp_path / "c", epoch_size=2, drain=False)
    told = statekit("inspect", tmp_path / "c").stdout
    assert "event time at, lateness 1:30:00, watermark 2026-01-01T15:30:00+00:00" in told
    assert "1 late so far" in " ".join(told.split())
    assert "_timers" in told
    for options in ([], ["--fast"]):
        (operator,) = json.loads(statekit("inspect", tmp_path / "c", "--json", *options).stdout)[
            "operators"
        ]
        assert operator["timers"] == 2
        assert operator["event_time"] == {
            "field": "at",
            "lateness_us": 5_400_000_000,
            "watermark": "2026-01-01T15:30:00+00:00",
            "late": 1,
            "waits_for": None,
        }


def test_reading_a_checkpoint_changes_nothing(checkpoint: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(checkpoint.rglob("*"))}
    statekit("inspect", checkpoint)
    statekit("get", checkpoint, "follow", "last", '["UA", 1545]')
    assert {path: path.stat().st_mtime_ns for path in sorted(checkpoint.rglob("*"))} == before


def test_a_reader_lists_all_keys_of_a_state(checkpoint: Path, tmp_path: Path) -> None:
    reader = CheckpointReader(checkpoint)
    rows = {tuple(k): v for k, v in reader.rows("follow", "airports", tmp_path / "rows")}
    assert rows == {("UA", 1545): {"EWR": 1, "JFK": 1}, ("AA", None): {"LGA": 1}}


def test_a_reader_refuses_unknown_names(checkpoint: Path) -> None:
    reader = CheckpointReader(checkpoint)
    with pytest.raises(QueryError, match="no operator"):
        reader.get("nobody", "last", "x")
    with pytest.raises(StateTypeError):
        reader.get("follow", "last", ["UA", "not a number"])


@sk.process(key="id")
def measure(record: dict[str, Any], held: sk.ValueState[float]) -> None:
    held.update(record["held"])


def test_keys_of_plain_dicts_are_found_as_numbers_and_as_text(tmp_path: Path) -> None:
    harness = Harness(measure, checkpoint=tmp_path)
    harness.send({"id": "42", "held": 1.0}, {"id": -1, "held": float("nan")})
    assert json.loads(statekit("get", tmp_path, "measure", "held", "42").stdout) == 1.0
    assert json.loads(statekit("get", tmp_path, "measure", "held", "-1").stdout) == "NaN"


# ------------------------------------------------------------------------------ rollback and diff


@pytest.fixture
def going(tmp_path: Path) -> Path:
    """A checkpoint of four epochs, to be changed."""
    path = tmp_path / "going"
    harness = Harness(follow, parallelism=2, checkpoint=path)
    for number in range(4):
        harness.send(Visit("UA", number, "EWR", AT), Visit("UA", 1545, "JFK", AT))
    return path


def test_rollback_prints_its_plan_and_carries_it_out(going: Path) -> None:
    dry = statekit("rollback", going, "--to", 1, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "dry run: nothing was changed" in dry.stdout
    assert CheckpointReader(going).epochs == [0, 1, 2, 3]
    done = statekit("rollback", going, "--to", 1)
    assert (done.returncode, done.stderr) == (0, "")
    for told in (
        "job follow",
        "from epoch 3, committed",
        "to epoch   1, committed",
        "as epoch 4",
        "epochs 2–3: no longer part of the history",
        "callbacks and writers of Spark keep them",
    ):
        assert told in dry.stdout
        assert told in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "follow.total" in line]
    assert row.split()[1::2] == ["follow.total", "5", "3"]
    assert "epoch 4 has the state of epoch 1" in done.stdout
    again = statekit("rollback", going, "--to", 1)
    assert again.returncode == 0
    assert "has the state of epoch 1 already" in again.stdout
    assert CheckpointReader(going).epochs == [0, 1, 2, 3, 4]


def test_inspect_shows_epochs_that_were_rolled_back_and_reads_them(going: Path) -> None:
    assert json.loads(statekit("inspect", going, "--json").stdout)["rolled_back"] == []
    statekit("rollback", going, "--to", 1)
    for epoch in ([], ["--epoch", 2]):
        assert "epochs 2–3 were rolled back" in statekit("inspect", going, *epoch).stdout
        found = json.loads(statekit("inspect", going, "--json", *epoch).stdout)
        assert found["rolled_back"] == [[2, 3]]
    key = '["UA", 1545]'
    seen = [
        json.loads(statekit("get", going, "follow", "total", key, *epoch).stdout)
        for epoch in ([], ["--epoch", 3])
    ]
    assert seen == [2, 4]


@pytest.mark.parametrize("to", [3, 9, -1])
def test_rollback_to_an_unknown_epoch_is_an_error(going: Path, to: int) -> None:
    done = statekit("rollback", going, f"--to={to}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "RestoreError" in done.stderr
    assert statekit("rollback", going).returncode == 2
    assert statekit("rollback", going / "nowhere", "--to", 1).returncode == 1


def test_diff_prints_different_rows_and_has_its_own_exit_code(going: Path) -> None:
    done = statekit("diff", f"{going}@0", going, "--rows", 9)
    assert (done.returncode, done.stderr) == (3, "")
    for told in (
        'follow.total ~ ["UA", 1545]: 1 → 4',
        'follow.seen + ["UA", 1545] 1:',
        "follow.total",
        "different",
    ):
        assert told in done.stdout
    same = statekit("diff", f"{going}@3", going)
    assert same.returncode == 0
    assert "0 shards were read, 2 of the same attempt were not" in same.stdout


def test_diff_prints_json(going: Path) -> None:
    done = statekit("diff", f"{going}@2", f"{going}@3", "--rows", 9, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert found["same"] is False
    (total,) = [state for state in found["states"] if state["state"] == "total"]
    assert (total["rows_a"], total["rows_b"], total["added"], total["changed"]) == (4, 5, 1, 1)
    changed = {"change": "changed", "key": ["UA", 1545], "place": None, "old": 3, "new": 4}
    assert changed in total["examples"]


def test_diff_of_an_unknown_state_is_an_error(going: Path) -> None:
    assert statekit("diff", f"{going}@9", going).returncode == 1
    assert statekit("diff", going, going / "nowhere").returncode == 1
    assert statekit("diff", going).returncode == 2


def test_diff_takes_a_directory_whose_name_looks_like_an_epoch(going: Path) -> None:
    named = going.rename(going.with_name("checkpoint@2"))
    assert statekit("diff", named, f"{named}@3").returncode == 0


# --------------------------------------------------------------------------------- savepoints


def test_savepoint_prints_its_contents_and_how_to_start_from_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    done = statekit("savepoint", copy, "before-upgrade", "--epoch", 0)
    assert done.returncode == 0, done.stderr
    url = (copy / "savepoints/before-upgrade").as_uri()
    assert f'from_savepoint="{url}"' in done.stdout
    assert f"--from-savepoint {url}" in done.stdout
    assert "epoch 0" in done.stdout
    lines = [line.split("│") for line in done.stdout.split("\n") if "│" in line]
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in lines}
    kind, count, _, files = rows["follow.airports"]
    assert (kind, count, files) == ("map[str → int]", "1", "1")
    again = Harness.restore(follow, copy / "savepoints/before-upgrade")
    assert again.state("airports", ("UA", 1545)) == {"EWR": 1}


def test_savepoint_refuses_a_name_that_is_taken(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    assert statekit("savepoint", copy, "s").returncode == 0
    done = statekit("savepoint", copy, "s")
    assert done.returncode == 1
    assert "is a savepoint already" in done.stderr
    assert statekit("savepoint", tmp_path / "absent", "s").returncode == 1


def test_inspect_shows_a_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    assert statekit("savepoint", copy, "s").returncode == 0
    shown = statekit("inspect", copy / "savepoints/s")
    assert "savepoint s of job follow" in shown.stdout
    found = json.loads(statekit("inspect", copy / "savepoints/s", "--json").stdout)
    assert (found["savepoint"], found["epoch"], found["batch"]) == ("s", 1, None)
    assert found["operators"]["follow"]["seen"]["rows"] == 3


# --------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rescale", "{}", "--to", "2", "--fast"], "a rescale always verifies"),
        (
            ["rescale", "{}", "--to", "2", "--plan", "--fast", "--key-groups", "7"],
            "--fast knows nothing of other key groups",
        ),
        (["verify", "{}", "--drop-rows"], "--drop-rows goes with --repair"),
        (["verify", "{}", "--repair", "--epoch", "0"], "leave --epoch and --no-rows out"),
        (["verify", "{}", "--repair", "--no-rows"], "leave --epoch and --no-rows out"),
        (["verify", "{}", "--all", "--no-rows"], "leave the other option out"),
        (["verify", "{saved}", "--repair"], "a savepoint is never changed"),
        (["verify", "{saved}", "--epoch", "0"], "leave --epoch and --all out"),
        (["inspect", "{saved}", "--epoch", "0"], "leave --epoch out"),
        (["inspect", "{saved}", "--operator", "ledger"], "--operator is for checkpoints"),
        (["copies", "--all"], "--all goes with --clean"),
        (["gc", "{}", "--age", "soon"], "'soon' is no duration"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_advice(
    checkpoint: Path, words: list[str], message: str
) -> None:
    saved = STORED / "all-kinds/savepoints/s"
    filled = [word.replace("{saved}", str(saved)).replace("{}", str(checkpoint)) for word in words]
    result = invoked(*filled, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_rescale_prints_that_rows_are_written_again_and_verified(
    checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    done = statekit("rescale", copy, "--to", 3, "--key-groups", 64)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 shards of 128 key groups → 3 of 64: all rows are written again" in done.stdout
    assert "written, read back and found the same in" in done.stdout
    assert "follow.airports: 3 rows with checksum" in done.stdout
    assert "committed as epoch 2. Earlier epochs are as they were." in done.stdout
