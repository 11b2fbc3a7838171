"""Copy records, so that no consumer sees what another one changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from statekit.codec.annotations import IMMUTABLE, is_immutable, peel, struct_fields, struct_flavour
from statekit.records.declaration import flavour_of

Copy = Callable[[Any], Any]


def copier(annotation: Any) -> Copy | None:
    """Return a function that copies one value of an annotation; None if values cannot change.

    >>> copier(tuple[str, int]) is None
    True
    >>> record = {"tags": ["a"]}
    >>> copied = copier(dict)(record)
    >>> copied == record, copied["tags"] is record["tags"]
    (True, False)
    """
    if is_immutable(annotation):
        return None
    members, _, _ = peel(annotation)
    if (
        len(members) == 1
        and struct_flavour(members[0]) is not None
        and all(is_immutable(field.annotation) for field in struct_fields(members[0]))
    ):
        return copy.copy
    if members and all(flavour_of(member) == "dict" for member in members):
        return _copy_dict
    return copy.deepcopy


def _copy_dict(value: Any) -> Any:
    if type(value) is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)
