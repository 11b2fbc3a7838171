"""Jobs without a document, and documents that are refused: with the place and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from tests.support.document_jobs import Order, total

MODULE = "tests.support.document_jobs"


def small_job() -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order).process(total).sink("totals")
    return job


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(small_job().to_json())
    return loaded


def refused(text: Any, **options: Any) -> str:
    given = text if isinstance(text, str | bytes) else json.dumps(text)
    with pytest.raises(sk.StateTypeError) as caught:
        sk.Job.from_json(given, **options)
    return str(caught.value)


# ----------------------------------------------------------------------------- jobs without one


def with_lambda(orders: sk.Stream[Order]) -> None:
    orders.filter(lambda order: order.cents > 1, name="large")


def with_local_function(orders: sk.Stream[Order]) -> None:
    def local(order: Order) -> Order:
        return order

    orders.map(local)


def with_local_process(orders: sk.Stream[Order]) -> None:
    @sk.process(key="customer")
    def counted(order: Order, seen: sk.ValueState[int]) -> Iterator[Order]:
        yield order

    orders.process(counted)


def with_callback(orders: sk.Stream[Order]) -> None:
    orders.sink("out", sk.sinks.callback(lambda frame, epoch: None))


def with_plain_secret(orders: sk.Stream[Order]) -> None:
    options = {"sasl.username": "ada", "sasl.password": "quite secret"}
    orders.sink("out", sk.sinks.kafka("kafka:9092", "orders", options=options))


def with_password_in_url(orders: sk.Stream[Order]) -> None:
    orders.sink("out", sk.sinks.postgres("postgresql://ada:quite-secret@db/shop", "orders"))


def with_password_of_libpq(orders: sk.Stream[Order]) -> None:
    orders.sink("out", sk.sinks.postgres("host=db user=ada password=quite-secret", "orders"))


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (with_lambda, r"steps.1.with.fn: a lambda cannot be imported"),
        (with_local_function, r"steps.1.with.fn: .*local, which stands in a function"),
        (with_local_process, r"steps.1.with.declared: .*counted, which stands in a function"),
        (with_callback, r"steps.1.with.target.fn: a lambda"),
        (with_plain_secret, r"options.sasl.password is a secret.*sk.secret\(env"),
        (with_password_in_url, r"steps.1.with.target.url: the text contains a password"),
        (with_password_of_libpq, r"steps.1.with.target.url: the text contains a password"),
    ],
)
def test_a_job_with_a_part_without_a_form_has_no_document(
    add: Callable[[sk.Stream[Order]], None], message: str
) -> None:
    job = sk.Job("shop")
    add(job.source("orders", Order))
    with pytest.raises(sk.StateTypeError, match=message) as caught:
        job.to_json()
    assert "quite" not in str(caught.value)


def test_functions_of_a_script_have_no_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(total.fn, "__module__", "__main__")
    with pytest.raises(sk.StateTypeError, match="is in a script, which no other process can"):
        small_job().to_json()


def test_a_call_that_failed_is_not_in_the_document() -> None:
    job = small_job()
    before = job.to_json()
    with pytest.raises(sk.StateTypeError):
        job.source("orders", Order)
    with pytest.raises(sk.StateTypeError):
        sk.Stream(job.plan, "orders").join(sk.Stream(job.plan, "total"), on="unknown")
    assert job.to_json() == before


# ----------------------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"version: the document has version 2, and this release reads 1"),
        ({"statekit": "table"}, r"statekit: Input should be 'job'"),
        ({"colour": "red"}, r"colour: Extra inputs are not permitted"),
        ({"name": 7}, r"name: Input should be a valid string"),
        ({"steps": {}}, r"steps: Input should be a valid list"),
        ({"key_groups": 0}, r"key_groups"),
    ],
)
def test_another_structure_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    assert re.search(message, refused(document() | change))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"call": "job.delete"}, r"steps.3.call: there is no 'job.delete': calls are job.add"),
        ({"call": "stream.window", "of": ["orders"]}, r"steps.3.call: there is no 'stream.window'"),
        (
            {"call": "stream.sink", "of": ["orders"], "with": {"name": "a", "colour": "red"}},
            r"steps.3.with.colour: Extra inputs are not permitted",
        ),
        ({"call": "stream.sink", "of": ["orders"], "to": 1}, r"steps.3.to: Extra inputs"),
        ({"call": "stream.sink", "of": ["orders"]}, r"steps.3.with.name: Field required"),
        (
            {"call": "stream.sink", "of": ["bids"], "with": {"name": "a"}},
            r"steps.3.of: there is no stream 'bids' before this step",
        ),
        (
            {"call": "stream.sink", "of": "orders", "with": {"name": "a"}},
            r"steps.3.of: 'orders' is not what stream.sink is called of",
        ),
        (
            {"call": "store.changes", "of": "kv"},
            r"steps.3.of: 'kv' is not what store.changes is called of",
        ),
        (
            {"call": "window.count", "of": {"of": ["orders"], "with": {"size": 1}}},
            r"steps.3.of.with.window: Field required; steps.3.of.with.key: Field required",
        ),
        (
            {"call": "stream.filter", "of": ["orders"], "with": {"fn": "weight > 3"}},
            r"steps.3 \(stream.filter\): .*weight",
        ),
        (
            {"call": "stream.filter", "of": ["orders"], "with": {"fn": {"$sql": "DROP TABLE a"}}},
            r"steps.3.with.fn: .*DROP TABLE a",
        ),
        (
            {"call": "stream.map", "of": ["orders"], "with": {"fn": {"$eval": "1"}}},
            r"steps.3.with.fn: \$eval is no form of a value",
        ),
        (
            {
                "call": "stream.map",
                "of": ["orders"],
                "with": {"fn": {"$function": f"{MODULE}:doubled", "also": 1}},
            },
            r"steps.3.with.fn: 'also' is unknown beside \$function",
        ),
        (
            {"call": "stream.map", "of": ["orders"], "with": {"fn": {"$function": "os.system"}}},
            r"steps.3.with.fn: 'os.system' names nothing: write module:name",
        ),
        (
            {
                "call": "stream.map",
                "of": ["orders"],
                "with": {"fn": {"$function": f"{MODULE}:operator.add"}},
            },
            r"steps.3.with.fn: .* does not define operator.add",
        ),
        (
            {
                "call": "stream.process",
                "of": ["orders"],
                "with": {"declared": {"$process": f"{MODULE}:doubled"}},
            },
            r"steps.3.with.declared: .* no function decorated with @process",
        ),
        (
            {
                "call": "stream.sink",
                "of": ["orders"],
                "with": {"name": "a", "target": {"$call": "sinks.printer"}},
            },
            r"steps.3.with.target: 'sinks.printer' is none of Aggregate",
        ),
        (
            {
                "call": "stream.sink",
                "of": ["orders"],
                "with": {"name": "a", "target": {"$call": "sinks.parquet", "with": {"to": "/x"}}},
            },
            r"steps.3.with.target: sinks.parquet: it has no parameter 'to'",
        ),
        (
            {
                "call": "stream.sink",
                "of": ["orders"],
                "with": {
                    "name": "a",
                    "target": {
                        "$call": "sinks.postgres",
                        "with": {"url": {"$secret": {"env": "NO_SUCH_URL"}}, "table": "a"},
                    },
                },
            },
            r"steps.3.with.target.url: secret\(env='NO_SUCH_URL'\): there is no such environment",
        ),
        (
            {
                "call": "stream.last",
                "of": ["orders"],
                "with": {"ttl": {"$decimal": "many"}, "by": "at"},
            },
            r"steps.3.with.ttl: 'many' cannot be read",
        ),
    ],
)
def test_a_step_that_is_not_valid_is_refused_with_its_path(
    step: dict[str, Any], message: str
) -> None:
    given = document()
    given["steps"].append(step)
    assert re.search(message, refused(given))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1}', b"\xff\xfe", "NaN", '"job"'])
def test_what_is_no_document_is_refused(text: str | bytes) -> None:
    assert "the document of the job is no" in refused(text)


def test_a_document_without_end_is_refused() -> None:
    assert "at most 8,388,608 are read" in refused(" " * (100 << 20))


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_refused(nested: str) -> None:
    given = document()
    text = json.dumps(given)[:-1] + ', "more": ' + nested
    assert "the document of the job is no JSON" in refused(text)


def test_nesting_that_json_still_reads_is_refused() -> None:
    value: Any = []
    given = document()
    for _ in range(150):
        value = [value]
    given["steps"].append(
        {"call": "stream.last", "of": ["orders"], "with": {"ttl": value, "by": "at"}}
    )
    assert "steps.3" in refused(given)


# ------------------------------------------------------------------------------------- imports


def test_only_allowed_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "imported_as_example.py"
    written.write_text("raise AssertionError('it was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = document()
    given["steps"][0]["with"]["types"] = [{"$type": "imported_as_example:Order"}]
    assert "may not be imported here: allowed are tests" in refused(given, modules=["tests"])
    assert "it was imported" in refused(given)


def test_an_allowed_package_has_its_modules_and_no_others_of_its_prefix() -> None:
    text = small_job().to_json()
    for modules in (["tests"], [MODULE]):
        assert str(sk.Job.from_json(text, modules=modules)) == str(small_job())
    for others in ([], ["tests.supp"], [f"{MODULE}.more"], ["statekit"]):
        assert "may not be imported here" in refused(text, modules=others)


def test_a_function_that_has_changed_is_refused_unless_that_is_allowed() -> None:
    given = document()
    given["steps"][1]["with"]["declared"]["digest"] = "0" * 16
    message = refused(given)
    assert f"steps.1.with.declared: the source of {MODULE}:total has changed" in message
    assert "changed=True" in message
    assert str(sk.Job.from_json(json.dumps(given), changed=True)) == str(small_job())


# ------------------------------------------------------------------------------------- secrets


def test_a_document_has_places_of_secrets_and_the_job_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_URL", "postgresql://ada:first@db/shop")
    file = tmp_path / "password"
    file.write_text("quite secret\n")
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.sink("rows", sk.sinks.postgres(sk.secret(env="EXAMPLE_URL"), "orders"))
    options = {"sasl.password": sk.secret(file=file)}
    orders.sink("topic", sk.sinks.kafka("kafka:9092", "orders", options=options))
    text = job.to_json()
    assert "first" not in text
    assert "quite" not in text
    assert json.loads(text)["steps"][1]["with"]["target"]["with"]["url"] == {
        "$secret": {"env": "EXAMPLE_URL"}
    }
    monkeypatch.setenv("EXAMPLE_URL", "postgresql://ada:second@db/shop")
    again = sk.Job.from_json(text)
    assert again.to_json() == text
    rows: Any = again.plan.sinks[0].target
    topic: Any = again.plan.sinks[1].target
    assert "second" in rows.database.url
    assert topic.cluster.options["sasl.password"] == "quite secret"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "takes env="),
        ({"env": "A", "file": "b"}, "takes env="),
        ({"env": "NO_SUCH_SECRET"}, "there is no such environment variable"),
        ({"file": "/no/such/file"}, "it cannot be read"),
    ],
)
def test_a_secret_that_is_not_there_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.secret(**options)


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(sk.StateTypeError, match="the file is empty"):
        sk.secret(file=empty)


@pytest.mark.parametrize("given", [None, {}, 1])
def test_what_is_no_text_is_refused(given: Any) -> None:
    with pytest.raises(sk.StateTypeError, match=r"is of type .*: give the text of to_json"):
        sk.Job.from_json(given)


@pytest.mark.parametrize("version", [True, 1.0, "1"])
def test_a_version_that_is_no_whole_number_is_refused(version: Any) -> None:
    assert "this release reads 1" in refused({**document(), "version": version})


def test_a_name_that_an_object_has_twice_is_refused() -> None:
    text = json.dumps(document())
    assert "'name' twice" in refused(text.replace('"name": "shop"', '"name": "a", "name": "shop"'))


def test_a_pattern_of_any_depth_is_refused_with_its_place() -> None:
    source = {
        "$call": "sources.kafka",
        "with": {"servers": "k:9092", "topics": {"$pattern": "(" * 5_000}},
    }
    whole = document()
    whole["steps"][0]["with"]["source"] = source
    assert re.match(r"steps\.0\.with\.source.*nested too deeply", refused(whole))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            {
                "$call": "sinks.kafka",
                "with": {"servers": "k", "topic": "t", "options": {"sasl.password": "hunter2"}},
            },
            "sasl.password is a secret",
        ),
        (
            {"$call": "sinks.postgres", "with": {"url": "postgresql://u:pw@h/db", "table": "t"}},
            "contains a password",
        ),
        (
            {
                "$call": "sinks.iceberg",
                "with": {"table": "a.b", "catalog": {"auth": {"type": "custom"}}},
            },
            "options in a document are single values",
        ),
    ],
)
def test_a_document_that_to_json_would_not_write_is_refused(
    target: dict[str, Any], message: str
) -> None:
    whole = document()
    whole["steps"][-1]["with"]["target"] = target
    found = refused(whole)
    assert message in found
    assert "hunter2" not in found
