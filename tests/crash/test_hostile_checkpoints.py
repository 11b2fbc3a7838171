"""Checkpoints that somebody else made, with checksums that fit: readers end with a typed error.

Nothing outside of the checkpoint and of the working directory is written or removed, whatever names
and numbers its files have.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.object_store import LocalObjects
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef, checksum_of
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.checkpoint.store_url import local_path
from statekit.cli.app import app
from statekit.codec.schema import schema_of
from statekit.errors import CorruptCheckpointError, StatekitError, StateTypeError
from statekit.job.options import RunOptions
from statekit.maintenance.savepoint.format import saved_rows
from statekit.names import name_fault, path_fault
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.uploader import uploader
from tests.support.effort import SOAK
from tests.support.full_checkpoint import Files, job, make, make_with_bases, steps

SEALED = re.compile(
    r"job.*\.json|(epochs|begun|readers)/.*\.(json|first)|.*(savepoint|base|history)\.json"
)

COMMANDS = typer.main.get_command(app)

NAMES = [
    "../../outside/planted",
    "/proc/self/environ",
    "..",
    ".",
    "",
    "a/../../b",
    "data/../job.json",
    "a\x00b",
    "a\nb",
    "C:\\windows\\x",
    "NUL",
    "com1.sst",
    "x" * 300,
    "y/" * 600,
    "dot.",
    "space ",
    "e\u0301",
    "\u202ecod",
    "CURRENT",
    "LOCK",
    "clean",
    "job.json",
    "epochs/00000000000000000000.json",
]
NUMBERS = [-1, 0, 1, 2**31, 2**53, 2**60, 2**63, 2**64, 10**30, 1.5]
OTHERS: list[Any] = [None, True, [], {}, [[]], "", "x", {"kind": "list"}, ["int"] * 3]


def sealed(body: Any) -> bytes:
    """A file whose checksum fits, whatever it says."""
    found = {name: value for name, value in body.items() if name != "checksum"}
    data = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode(
        errors="surrogatepass"
    )[:-1]
    return data + f',"checksum":"{checksum_of(data)}"}}'.encode()


def is_sealed(path: str) -> bool:
    return SEALED.fullmatch(path) is not None


class Forger:
    """Changes files of a checkpoint, and everything that has their checksums."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = (path for path in root.rglob("*") if path.is_file())
        self.paths = sorted(str(path.relative_to(root)) for path in found)

    def write(self, path: str, data: bytes) -> None:
        """Replace a file, and every reference to it."""
        (self.root / path).write_bytes(data)
        for other in filter(is_sealed, self.paths):
            if other == path:
                continue
            folder = other.rpartition("/")[0] if other.endswith("savepoint.json") else ""
            body = json.loads((self.root / other).read_bytes())
            if _refer_anew(body, folder, path, data):
                self.write(other, sealed(body))

    def reference(self, path: str) -> Any:
        """What refers to a file."""
        data = (self.root / path).read_bytes()
        return {"path": path, "size": len(data), "checksum": checksum_of(data)}

    def body(self, path: str) -> Any:
        return json.loads((self.root / path).read_bytes())


def _refer_anew(value: Any, folder: str, path: str, data: bytes) -> bool:
    """Change all references to a file; whether there are any that were out of date."""
    if isinstance(value, list):
        return any(list(_each_anew(value, folder, path, data)))
    if not isinstance(value, dict):
        return False
    changed = any(list(_each_anew(value.values(), folder, path, data)))
    if "path" in value and f"{folder}/{value['path']}".lstrip("/") == path:
        now = {"size": len(data), "checksum": checksum_of(data)}
        changed |= any(value.get(name) != held for name, held in now.items())
        value.update(now)
    return changed


def _each_anew(values: Iterable[Any], folder: str, path: str, data: bytes) -> Iterator[bool]:
    return (_refer_anew(value, folder, path, data) for value in values)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a JSON value; a key of an object has one of its own."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, ("key", key))
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*at, number))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place."""
    step, *rest = at
    if isinstance(step, tuple):
        return {(str(new) if key == step[1] else key): item for key, item in value.items()}
    copy = value.copy()
    copy[step] = changed(value[step], tuple(rest), new) if rest else new
    return copy


# ------------------------------------------------------------------------------ what reads it


def command(*words: str) -> None:
    """A command line, in this process: anything but an explained error passes through."""
    explained = (StatekitError, click.exceptions.Exit, click.ClickException)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(*explained),
    ):
        COMMANDS.main(list(words), standalone_mode=False)


def go_on(root: Path, working: Path) -> None:
    """Run the job for an epoch, on RocksDB."""
    with contextlib.suppress(StatekitError):
        copies = DiskCopies(working, bases=BaseOptions(replay_seconds=0))
        runner = LocalRunner(job().plan, Repository(root), copies, RunOptions(parallelism=3))
        runner.epoch({"steps": steps(9)})


def restore(root: Path, working: Path) -> None:
    """Start a new checkpoint from the savepoint."""
    with contextlib.suppress(StatekitError):
        job().run(
            {"steps": steps(9)},
            checkpoint=working / "new",
            from_savepoint=root / "savepoints" / "saved",
            parallelism=2,
        )


READERS: dict[str, Callable[[Path, Path], None]] = {
    "inspect": lambda root, _: command("inspect", str(root)),
    "inspect --json": lambda root, _: command("inspect", str(root), "--json", "--fast"),
    "inspect savepoint": lambda root, _: command("inspect", str(root / "savepoints" / "saved")),
    "get": lambda root, _: command("get", str(root), "keep", "last", "a"),
    "scan": lambda root, _: command("scan", str(root), "keep", "last", "--wide-ints"),
    "scan map": lambda root, _: command("scan", str(root), "keep_in_order", "by_n", "--key", "a"),
    "scan list": lambda root, _: command("scan", str(root), "keep_in_order", "seen"),
    "scan timers": lambda root, _: command("scan", str(root), "keep", "_timers", "--json"),
    "scan operator state": lambda root, _: command("scan", str(root), "share", "shared"),
    "top": lambda root, _: command("top", str(root)),
    "top --by writes": lambda root, _: command("top", str(root), "--by", "writes"),
    "get map": lambda root, _: command("get", str(root), "keep_in_order", "by_n", "a"),
    "get operator state": lambda root, _: command("get", str(root), "share", "shared"),
    "verify": lambda root, _: command("verify", str(root), "--all"),
    "repair": lambda root, _: command("verify", str(root), "--repair"),
    "diff": lambda root, _: command("diff", f"{root}@5", str(root), "--rows", "3"),
    "diff savepoint": lambda root, _: command("diff", str(root / "savepoints/saved"), str(root)),
    "rollback": lambda root, _: command("rollback", str(root), "--to", "5", "--dry-run"),
    "rescale --plan": lambda root, _: command("rescale", str(root), "--to", "3", "--plan"),
    "rescale": lambda root, _: command("rescale", str(root), "--to", "3", "--key-groups", "16"),
    "savepoint": lambda root, _: command("savepoint", str(root), "another"),
    "gc": lambda root, _: command("gc", str(root), "--epochs", "1", "--age", "0 seconds"),
    "run": go_on,
    "restore": restore,
}


# ------------------------------------------------------------------------------ the fuzz


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    """Two checkpoints that have all kinds of files between them."""
    home = tmp_path_factory.mktemp("hostile")
    make(Repository(home / "intact"))
    make_with_bases(Repository(home / "based"), home / "working")
    return [Files.copied(home / "intact"), Files.copied(home / "based")]


@contextlib.contextmanager
def laid_out(files: Files, home: Path) -> Iterator[tuple[Path, Path]]:
    """A checkpoint and a working directory, and something beside them that has to stay."""
    assert uploader().drain(60)  # what an example before left to do
    shutil.rmtree(home, ignore_errors=True)
    root, working, outside = home / "in" / "checkpoint", home / "working", home / "outside"
    for path, data in files.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    working.mkdir()
    outside.mkdir()
    (outside / "precious").write_bytes(b"kept")
    (home / "in" / "precious").write_bytes(b"kept")
    yield root, working
    assert uploader().drain(60)
    kept = [path for folder in (outside, home / "in") for path in sorted(folder.iterdir())]
    assert kept == [outside / "precious", root, home / "in" / "precious"]
    assert all(path.read_bytes() == b"kept" for path in kept if path != root)
    assert sorted(path.name for path in home.iterdir()) == ["in", "outside", "working"]


@settings(
    max_examples=5_000 if SOAK else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_forged_files_end_in_typed_errors_and_nothing_outside_is_touched(
    whole: list[Files], tmp_path: Path, data: st.DataObject
) -> None:
    with laid_out(data.draw(st.sampled_from(whole)), tmp_path / "home") as (root, working):
        forger = Forger(root)
        path = data.draw(st.sampled_from([path for path in forger.paths if is_sealed(path)]))
        body = forger.body(path)
        body.pop("checksum")
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.sampled_from(list(places(body))))
            outside = [str(tmp_path / "home" / "outside" / "planted"), *NAMES]
            new = st.sampled_from(outside) if isinstance(at[-1], tuple) else _values(outside)
            body = changed(body, at, data.draw(new))
        forger.write(path, sealed(body))
        for name in data.draw(st.lists(st.sampled_from(list(READERS)), min_size=3, max_size=5)):
            READERS[name](root, working)


def _values(names: list[str]) -> st.SearchStrategy[Any]:
    return st.sampled_from([*names, *NUMBERS, *OTHERS])


@pytest.mark.parametrize("name", list(READERS))
def test_every_reader_accepts_files_that_were_not_forged(
    whole: list[Files], tmp_path: Path, name: str
) -> None:
    """Without that, the fuzz would show nothing: each would end at the first file."""
    for files in whole:
        with laid_out(files, tmp_path / "home") as (root, working):
            READERS[name](root, working)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_that_is_nested_without_end_is_corrupt(
    whole: list[Files], tmp_path: Path, opening: bytes
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        last = max(Repository(root).epochs())
        for path in ("job.json", epoch_path(last), "savepoints/saved/savepoint.json"):
            data = b'{"format":' + opening * 100_000
            forged = data + f',"checksum":"{checksum_of(data)}"}}'.encode()
            (root / path).write_bytes(forged)
        with pytest.raises(CorruptCheckpointError, match=r"nested too deep|recursion"):
            Repository(root).manifest(last)
        for read in READERS.values():
            read(root, working)


def test_a_file_of_a_base_has_the_name_of_a_file_of_rocksdb(
    whole: list[Files], tmp_path: Path
) -> None:
    with laid_out(whole[1], tmp_path / "home") as (root, working):
        forger = Forger(root)
        path = next(path for path in forger.paths if path.endswith(".base.json"))
        for name in (
            str(tmp_path / "home/outside/planted"),
            "../planted",
            "LOCK",
            "OPTIONS-000001",
        ):
            body = forger.body(path)
            files = body["databases"][0]["files"]
            files[name] = next(iter(files.values()))
            forger.write(path, sealed(body))
            reference = FileRef.model_validate(forger.reference(path))
            with pytest.raises(CorruptCheckpointError, match="RocksDB has no file of that name"):
                Repository(root).sealed(BaseSnapshot, reference)
            go_on(root, working)
            del files[name]
            forger.write(path, sealed(body))


# ------------------------------------------------------------------------------ types and tables

NESTED: Any = "int"
for _ in range(60):
    NESTED = {"kind": "list", "items": [NESTED]}


@pytest.mark.parametrize(
    ("kind", "types", "why"),
    [
        ("value", {}, "types of its value and of its key"),
        ("value", {"value": "int", "other": "int"}, "types of its value and of its key"),
        ("map", {"value": "int"}, "a map state cannot have types of"),
        ("value", {"value": "int", "key": "str"}, "a value state cannot have types of"),
        ("queue", {"value": "int"}, "'queue', which does not exist"),
        ("value", {"value": {"kind": "list"}}, "a list has 1 items, and here 0"),
        ("value", {"value": {"kind": "int", "items": ["int"]}}, "a int has 0 items"),
        ("value", {"value": {"kind": "dict", "items": ["int"]}}, "a dict has 2 items"),
        ("value", {"value": {"kind": "enum", "name": "E"}}, "cannot have the values"),
        ("value", {"value": {"kind": "ref", "name": "Elsewhere"}}, "does not enclose it"),
        ("value", {"value": {"kind": "struct", "name": "a\x1b[2J"}}, "control character"),
        ("value", {"value": NESTED}, "nested more than 50 levels deep"),
        ("value", {"value": 7}, "7 is not a type"),
    ],
)
def test_a_job_description_with_a_type_that_is_none_is_corrupt(
    whole: list[Files], tmp_path: Path, kind: str, types: Any, why: str
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        forger = Forger(root)
        path = max(path for path in forger.paths if re.fullmatch(r"job.*\.json", path))
        body = forger.body(path)
        state = body["operators"][0]["states"][0]
        state.update(kind=kind, types=types)
        forger.write(path, sealed(body))
        with pytest.raises(CorruptCheckpointError, match=re.escape(why)):
            Repository(root).newest_job_file()
        for read in READERS.values():
            read(root, working)


def test_an_epoch_in_digits_of_another_alphabet_is_not_an_epoch(
    whole: list[Files], tmp_path: Path
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, _):
        epochs = Repository(root).epochs()
        planted = epoch_path(max(epochs) + 1).translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩"))
        (root / planted).write_bytes((root / epoch_path(max(epochs))).read_bytes())
        assert Repository(root).epochs() == epochs


def test_json_with_more_values_than_any_file_has_is_corrupt(
    whole: list[Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.checkpoint.sealed_json.VALUES_MAX", 1000)
    with laid_out(whole[0], tmp_path / "home") as (root, _):
        last = max(Repository(root).epochs())
        body = json.loads((root / epoch_path(last)).read_bytes())
        (root / epoch_path(last)).write_bytes(sealed({**body, "more": [[]] * 1000}))
        with pytest.raises(CorruptCheckpointError, match="more than 1,000 values"):
            Repository(root).manifest(last)


@pytest.mark.parametrize("column", ["_key", "_subkey", "_row", "position"])
def test_a_savepoint_whose_columns_have_other_types_is_corrupt(
    whole: list[Files], tmp_path: Path, column: str
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        forger = Forger(root)
        tables = (path for path in forger.paths if path.endswith(".parquet"))
        path = next(p for p in tables if column in pq.read_schema(root / p).names)
        table = pq.read_table(root / path)
        other = pa.array([{"a": 1}] * len(table))
        at = table.schema.get_field_index(column)
        forged = io.BytesIO()
        pq.write_table(table.set_column(at, column, other), forged)
        forger.write(path, forged.getvalue())
        with pytest.raises(CorruptCheckpointError, match=f"the column {column} is of type"):
            list(saved_rows(io.BytesIO(forged.getvalue()), path))
        for name in ("inspect savepoint", "diff savepoint", "verify", "restore"):
            READERS[name](root, working)


def test_a_type_that_no_reader_would_accept_cannot_be_declared() -> None:
    nested: Any = int
    for _ in range(60):
        nested = list[nested]
    with pytest.raises(StateTypeError, match="nested more than 50 levels deep"):
        schema_of(nested)

    @sk.process(key="a\x1b[2J")
    def odd(record: dict[str, Any], seen: sk.ValueState[int]) -> None:
        seen.update(1)

    made = sk.Job("odd")
    made.source("records", dict[str, Any]).process(odd)
    with pytest.raises(StateTypeError, match="control character"):
        made.run({"records": []})


# ------------------------------------------------------------------------------ links and devices


def test_no_symbolic_link_is_followed_out_of_a_checkpoint(
    whole: list[Files], tmp_path: Path
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        outside = tmp_path / "home" / "outside"
        shutil.move(root / "data" / "keep", outside / "keep")
        (root / "data" / "keep").symlink_to(outside / "keep")
        held = sorted((outside / "keep").iterdir())
        for read in READERS.values():
            read(root, working)
        assert sorted((outside / "keep").iterdir()) == held
        with pytest.raises(CorruptCheckpointError, match="a symbolic link leads there"):
            LocalObjects(root).put("data/keep/new", b"")
        shutil.rmtree(outside / "keep")


@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "fifo"])
def test_a_file_that_is_no_regular_file_is_corrupt(
    whole: list[Files], tmp_path: Path, target: str
) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        last = max(Repository(root).epochs())
        (change_file,) = list((root / "data" / "share").glob("*.changes.arrow"))[:1]
        for path in (change_file, root / epoch_path(last)):
            path.unlink()
            if target == "fifo":
                os.mkfifo(path)
            else:
                path.symlink_to(target)
        with pytest.raises(CorruptCheckpointError, match=r"a symbolic link|a device, a pipe"):
            Repository(root).manifest(last)
        for read in READERS.values():
            read(root, working)


def test_a_checkpoint_that_is_reached_by_a_link_is_read(whole: list[Files], tmp_path: Path) -> None:
    with laid_out(whole[0], tmp_path / "home") as (root, working):
        link = working / "link"
        link.symlink_to(root)
        repository = Repository(link)
        assert repository.manifest(max(repository.epochs())).job == "whole"


# ------------------------------------------------------------------------------ names


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("CURRENT", "LOCK")])
def test_a_job_has_no_name_that_its_checkpoint_would_be_refused_for(name: str) -> None:
    if name_fault(name) is None:
        assert name in ("clean", "job.json")
        return
    with pytest.raises(StateTypeError):
        sk.Job(name)
    with pytest.raises(StateTypeError):
        sk.Job("intact").source(name, dict)


def test_names_that_differ_in_case_alone_are_refused() -> None:
    made = sk.Job("intact")
    made.source("orders", dict)
    with pytest.raises(StateTypeError, match="differ in case alone"):
        made.source("Orders", dict)


@pytest.mark.parametrize("path", [path for path in NAMES if "/" not in path or ".." in path])
def test_a_path_that_could_mean_another_file_is_refused(path: str) -> None:
    plain = ("CURRENT", "LOCK", "clean", "job.json")
    assert (path_fault(f"data/{path}") is None) == (path in plain)


@pytest.mark.parametrize(
    "url", ["file://tmp/x", "file://host/x", "file:x", "file:///a?b", "file:///a#b", "FILE://x/y"]
)
def test_a_file_url_whose_path_is_not_clear_is_refused(url: str) -> None:
    with pytest.raises(StateTypeError, match="give"):
        local_path(url)


def test_a_file_url_with_escapes_is_the_path_that_is_meant(tmp_path: Path) -> None:
    odd = tmp_path / "a#b?c %20"
    Repository(odd)
    assert local_path(odd.as_uri()) == odd
    assert local_path(f"file:{tmp_path}") == tmp_path
    assert local_path(f"file://localhost{tmp_path}") == tmp_path
    assert local_path(str(odd)) == odd


# ------------------------------------------------------------------------------ command lines


@pytest.mark.parametrize("key", ["[" * 100_000, '{"a":' * 50_000, "9" * 5_000, "\ud800", "1e999"])
@pytest.mark.parametrize("operator", ["keep", "by_pair", "by_anything"])
def test_a_key_that_is_no_key_is_an_error_in_one_line(
    tmp_path: Path, key: str, operator: str
) -> None:
    @sk.process(key=("key", "n"))
    def by_pair(step: dict[str, Any], seen: sk.ValueState[int]) -> None:
        seen.update(1)

    @sk.process(key="key")
    def by_anything(step: dict[str, Any], seen: sk.ValueState[int]) -> None:
        seen.update(1)

    @sk.process(key="key")
    def keep(step: dict[str, Any], last: sk.ValueState[int]) -> None:
        last.update(1)

    made = sk.Job("keys")
    source = made.source("steps", dict[str, Any])
    for declared in (by_pair, by_anything, keep):
        source.process(declared)
    made.run({"steps": [{"key": "a", "n": 1}]}, checkpoint=tmp_path / "checkpoint")
    state = "last" if operator == "keep" else "seen"
    command("get", str(tmp_path / "checkpoint"), operator, state, key)


def test_all_of_this_took_little_memory() -> None:
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20, "kilobytes"
