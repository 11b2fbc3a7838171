"""What others read of a checkpoint, who have its schemas and none of the code, against what the
functions see.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.schema_codec import generic_decoder, generic_key_decoder
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.query.operator_keys import hashable
from statekit.query.reader import CheckpointReader
from statekit.state.base import StateSpec
from statekit.testing.driver import Contents


def misread(job: Job, repository: Repository, contents: Contents) -> str | None:
    """Return what is read of the last epoch of a checkpoint otherwise than the functions see it;
    None if nothing is.

    The reader replays the change files. So it also finds what a working copy has by mistake.

    Parameters:
        contents: after that epoch.
    """
    reader = CheckpointReader(repository, allow_pickle=True)
    for operator in job.operators:
        for spec in operator.declared.states:
            if spec.kind.is_local or spec.aggregate is not None:  # what is stored is not the result
                continue
            values = read_values(reader, operator.name, spec.name)
            found = {key: _values(spec, value) for key, value in values.items()}
            held = _shown(operator.declared, spec, contents.states[operator.name, spec.name])
            default = None if spec.default is None else _shows(spec)(spec.default)
            for key in dict.fromkeys([*held, *found]):
                if key not in found and held[key] == default:
                    continue
                if repr(held.get(key)) != repr(found.get(key)):
                    return (
                        f"state {spec.name!r} of {operator.name} at the key {key}: the function "
                        f"has {held.get(key)!r}, and a reader {found.get(key)!r}"
                    )
    return None


def read_values(reader: CheckpointReader, operator: str, state: str) -> dict[str, Any]:
    """Return what a reader shows of a state, by the texts of its keys."""
    with tempfile.TemporaryDirectory() as directory:
        return {repr(key): value for key, value in reader.rows(operator, state, directory)}


def _shown(
    process: Process[Any, Any, Any], spec: StateSpec, values: Mapping[Any, Any]
) -> dict[str, Any]:
    """Return the values of keys as a reader shows them, by the texts of its keys."""
    of, key_shown = _shows(spec), generic_key_decoder(process.key_codec.schema)
    found: dict[str, Any] = {}
    for key, value in values.items():
        match spec.kind.shape:
            case RowShape.VALUE:
                made = of(value)
            case RowShape.ELEMENTS:
                made = list(map(of, value))
            case RowShape.ENTRIES:
                made = list(map(of, value.values()))
        found[repr(hashable(key_shown(process.key_codec.encode(key))[0]))] = made
    return found


def _values(spec: StateSpec, read: Any) -> Any:
    """Return a value that was read; of a map, the values in the order of its keys."""
    if spec.kind.shape is not RowShape.ENTRIES:
        return read
    return list(read.values()) if isinstance(read, dict) else [value for _, value in read]


def _shows(spec: StateSpec) -> Callable[[Any], Any]:
    """Return a function that returns a value of a state as a reader shows it."""
    shown = generic_decoder(spec.codec.schema, spec.codec.name, allow_pickle=True)
    return lambda value: shown(spec.codec.encode(value))
