"""Seen keys equal a set, with their files and with a filter that has grown several times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.maintenance import seen_keys
from statekit.maintenance.seen_keys import SeenKeys
from statekit.query.encoded.binary_columns import big_endian_rows, fixed, hashes

few_keys = st.lists(st.binary(max_size=2) | st.integers(0, 60).map(str).map(str.encode))


def expected(batches: list[list[bytes]]) -> list[list[bool]]:
    seen, found = set[bytes](), list[list[bool]]()
    for batch in batches:
        found.append([])
        for key in batch:
            found[-1].append(key in seen)
            seen.add(key)
    return found


@settings(deadline=None)
@given(batches=st.lists(few_keys, max_size=12), most=st.integers(1, 40), short=st.integers(0, 9))
def test_a_key_is_repeated_if_a_set_has_it(
    batches: list[list[bytes]], most: int, short: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen_keys, "_KEYS_IN_MEMORY", most)
        patch.setattr(seen_keys, "_KEYS_OF_SHORT_RUN", short)
        seen = SeenKeys()
        found = [seen.repeated(pa.array(batch, pa.binary())).tolist() for batch in batches]
        seen.close()
    assert found == expected(batches)


def test_few_new_keys_are_looked_up_also_if_they_are_consecutive_numbers() -> None:
    keys = [fixed(big_endian_rows(np.arange(at, at + 50_000))) for at in (0, 50_000)]
    runs = [seen_keys._Run(hashes(of), hashes(of, second=True)) for of in keys]
    filtered = seen_keys._Filter(50_000)
    filtered.add(runs[0])
    assert filtered.has(runs[0]).all()
    assert filtered.has(runs[1]).mean() < 0.02
