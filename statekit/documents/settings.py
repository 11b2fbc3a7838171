"""Settings: arguments of sources and sinks that replace those of a document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from statekit.documents.job_document import read_document
from statekit.errors import StateTypeError
from statekit.shown import shown

_PARTS = {"source": ("job.source", "source"), "sink": ("stream.sink", "target")}
"""The call that declares each kind of part, and the argument with the object that it goes to."""


def with_settings(text: str, settings: Iterable[str]) -> str:
    """Return a document with other arguments of its sources and sinks.

    Parameters:
        text: of the document.
        settings: such as `source.orders.path=/data/orders`: the kind of a part, its name, a
            parameter, and the value, as JSON or as a text. For an option in a dict, its name
            follows that of the parameter, as in `source.orders.options.fetch.max.bytes=1000`.

    Raises:
        StateTypeError: the document or a setting is not valid, or the job has no such part.

    >>> import statekit as sk
    >>> job = sk.Job("shop")
    >>> _ = job.source("orders", dict, sk.sources.json_lines("/a"))
    >>> changed = with_settings(job.to_json(), ["source.orders.path=/b"])
    >>> json.loads(changed)["steps"][0]["with"]["source"]["with"]
    {'path': '/b'}
    """
    read_document(text)  # checks its structure
    document = json.loads(text)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise StateTypeError(
                f"{shown(setting)} sets nothing: write source.NAME.PARAMETER=VALUE"
            )
        _set(document["steps"], name, _value(value))
    return json.dumps(document, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(steps: list[dict[str, Any]], name: str, value: Any) -> None:
    kind = name.partition(".")[0]
    if kind not in _PARTS:
        raise StateTypeError(f"{shown(name)}: settings begin with source. or sink.")
    call, argument = _PARTS[kind]
    of_kind = [step["with"] for step in steps if step["call"] == call]
    found = [part for part in of_kind if name.startswith(f"{kind}.{part['name']}.")]
    if not found:
        names = ", ".join(part["name"] for part in of_kind) or "none"
        raise StateTypeError(f"{shown(name)}: the job has no such {kind}; it has {names}")
    part = max(found, key=lambda each: len(each["name"]))
    made = part.get(argument)
    if not isinstance(made, dict) or "$call" not in made:
        raise StateTypeError(
            f"{shown(name)}: {kind} {part['name']!r} has no {argument} in the job, so there is "
            f"nothing to set: give it one, such as {kind}s.json_lines(path)"
        )
    parameter, _, option = name.removeprefix(f"{kind}.{part['name']}.").partition(".")
    arguments = made.setdefault("with", {})
    if option:
        arguments.setdefault(parameter, {})[option] = value
    else:
        arguments[parameter] = value
