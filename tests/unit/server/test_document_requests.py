"""Requests that follow from the OpenAPI document, right ones and wrong ones, by schemathesis.

Each answer is one that the document has for the address: its status, media type, headers and body.
A right request that names no epoch is answered, and a wrong one is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import AcceptedNegativeData  # type: ignore[attr-defined]

from statekit.server.admission.access import digest_of
from tests.support import served_types
from tests.support.effort import SOAK
from tests.support.served import Sale, sell, server

EXAMPLES = 40 if SOAK else 2
"""Of each operation, of which there are some 150, right and wrong ones."""

TOKEN = {"Authorization": "Bearer some"}
EPOCH = ("epoch", "manifest", "as_of", "min_epoch", "min_watermark", "wait", "cursor")
DEPENDENT = (
    "POST /sql",
    "GET /openapi.json",
    "POST /submitted",
    "POST /submitted/{name}/rescale",
    "POST /submitted/{name}/rollback",
)
"""Operations whose parameters depend on each other, or on what is served, or whose body has ints:
14.0 is one by JSON Schema, and none for the server.
"""

RANGE = ("start", "end", "prefix", "closed", "limit", "offset", "count", "reverse")
OF_FILES = ("wide_ints",)
"""Parameters that are refused where the answer is JSON."""

SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

CONFIG = {
    "checks": {
        # A range of epochs cannot be said in a schema, nor which epochs there are.
        "positive_data_acceptance": {"enabled": False},
        # The epoch of a request is looked for before the state.
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 409, 410, 413]},
    }
}


@schemathesis.serializer("application/vnd.msgpack")
def _message_pack(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.msgpack.encode({"keys": []})


class Served(NamedTuple):
    """A server, and the operations of its document."""

    address: str
    operations: list[Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    sell(home / "sales", [Sale("rome", "tea", 400), Sale("oslo", "cup", 900)])
    served_types.run(home / "types", find_records())
    tokens = home / "tokens.json"
    listed = [{"name": "some", "sha256": digest_of("some"), "read": ["*"]}]
    tokens.write_text(json.dumps({"tokens": listed}))
    checkpoints = {"shop": home / "sales", "types": home / "types"}
    with server(checkpoints, tokens=tokens, refusals=None) as address:
        document = httpx.get(f"{address}/openapi.json", headers=TOKEN).json()
        # All requests have the token. Other tests are about those that have none, or another one.
        del document["security"], document["components"]["securitySchemes"]
        config = schemathesis.Config.from_dict({"base-url": address, **CONFIG})
        found = schemathesis.openapi.from_dict(document, config=config)
        found.validate()
        yield Served(address, [_operation(each) for each in found.get_all_operations()])


def _operation(found: Any) -> Any:
    """An operation; raises what is wrong with it."""
    return found.ok()


def find_records() -> dict[str, list[Any]]:
    """Some records, the same ones each time."""
    return find(
        served_types.random_records(), lambda _: True, settings=settings(SETTINGS, max_examples=1)
    )


def is_about_types(operation: Any) -> bool:
    return str(operation.path).startswith("/types/")


def has_parameters(operation: Any) -> bool:
    return any((operation.path_parameters, operation.query, operation.headers, operation.body))


def is_about_other_parameters(failure: BaseException) -> bool:
    """Whether a request was only wrong in that it has further parameters. They are refused, which
    another test is about; but some of these requests lose them on the way.
    """
    return isinstance(failure, AcceptedNegativeData) and "`additionalProperties`" in str(failure)


def wait_briefly(case: Any) -> None:
    """A request that may wait for a minute waits for a moment."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0 <= wait <= 60:
        case.query["wait"] = 0.01


@pytest.mark.parametrize("of_types", [False, True], ids=["generic", "types"])
def test_wrong_requests_are_refused_as_the_document_says(served: Served, of_types: bool) -> None:
    for operation in served.operations:
        if is_about_types(operation) != of_types or not has_parameters(operation):
            continue

        @given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        @SETTINGS
        def refused(case: Any) -> None:
            wait_briefly(case)
            try:
                case.call_and_validate(headers=TOKEN)
            except FailureGroup as failures:
                if not all(map(is_about_other_parameters, failures.exceptions)):
                    raise

        refused()


@pytest.mark.parametrize("of_types", [False, True], ids=["generic", "types"])
def test_right_requests_are_answered_as_the_document_says(served: Served, of_types: bool) -> None:
    for operation in served.operations:
        if is_about_types(operation) != of_types:
            continue

        @given(case=operation.as_strategy(), is_of_the_last=st.booleans())
        @SETTINGS
        def answered(case: Any, is_of_the_last: bool) -> None:
            wait_briefly(case)
            if is_of_the_last:
                query = case.query or {}
                is_single = "key" in query or "entry" in query
                for name in (*EPOCH, *OF_FILES, *(RANGE if is_single else ())):
                    query.pop(name, None)
            answer = case.call_and_validate(headers=TOKEN)
            if is_of_the_last and case.operation.label not in DEPENDENT:
                assert answer.status_code in (200, 304, 404), (
                    f"{case.as_curl_command()}: {answer.text}"
                )

        answered()
