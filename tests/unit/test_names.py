"""Names and paths of stored files."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from statekit.names import _UNIQUE_FILE, _part_fault, path_fault


@given(st.from_regex(_UNIQUE_FILE, fullmatch=True))
@example(f"{'0' * 32}.changes.arrow")
def test_a_unique_file_has_no_fault_that_a_look_at_its_characters_would_find(name: str) -> None:
    assert _part_fault(name) is None
    assert path_fault(f"data/count/{name}") is None


@given(st.sampled_from(["..", "", "con", "a:b", "a. "]), st.booleans())
def test_a_unique_file_in_a_folder_with_a_fault_is_refused(folder: str, is_first: bool) -> None:
    path = f"{folder}/count" if is_first else f"data/{folder}"
    assert path_fault(f"{path}/{'0' * 32}.changes.arrow") is not None


@given(st.sampled_from(["\n", ".", " ", ".1", ".a.b.c", "/", "/.."]))
def test_what_only_begins_like_a_unique_file_is_looked_at(end: str) -> None:
    path = f"data/count/{'0' * 32}.json{end}"
    faults = [_part_fault(part) for part in path.split("/")]
    assert path_fault(path) == next(filter(None, faults), None)
