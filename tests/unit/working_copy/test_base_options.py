from __future__ import annotations

import pytest

from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.errors import StateTypeError
from statekit.working_copy.base_options import BaseOptions

ROW = 100
MB = 1_000_000


def after(epochs: int, rows: int, chain: ReplayCost | None = None) -> ReplayCost:
    """A chain of that many epochs, each with so many rows that cannot be compressed."""
    made = chain or ReplayCost()
    file = FileRef(path="data/o/x", size=rows * ROW + 1500, checksum="0" * 32, rows=rows)
    for _ in range(epochs):
        made = made.followed_by(file, rows * ROW)
    return made


def test_few_changes_are_not_worth_a_base_and_many_are() -> None:
    options = BaseOptions()
    assert not options.is_due(ReplayCost(), 0)
    assert not options.is_due(after(1, 100_000), 100_000 * ROW)
    assert options.is_due(after(1, 1_000_000), MB * ROW)
    assert options.is_due(after(200, 1), 200 * ROW)  # a trip for each file


def test_the_larger_the_state_the_longer_its_chain_may_be() -> None:
    options = BaseOptions()
    chain = after(1, 1_000_000)
    assert options.is_due(chain, 100 * MB)
    assert not options.is_due(chain, 1000 * MB)


def test_the_first_base_follows_the_initial_load() -> None:
    options = BaseOptions()
    chain = after(1, MB)
    size = {"size": 105 * MB, "new_bytes": 105 * MB, "row_bytes": 100 * MB}
    assert options.choice(chain, **size) == "changed tables"
    assert options.choice(chain.based([], 105 * MB), **size) == "none"


def test_uploads_stay_within_the_budget_of_changed_bytes() -> None:
    """Whatever is in the database, 10,000 epochs upload no more than was agreed."""
    options = BaseOptions()
    chain, uploaded, changed, rest = ReplayCost(), 0, 0, 0
    live, bases, bytes_held = 20 * MB, 0, 20 * MB
    for _ in range(10_000):
        chain = after(1, 500, chain)
        uploaded += 500 * ROW + 1500
        changed += 500 * ROW
        rest += 500 * ROW
        bytes_held = live + rest % live  # as if everything were merged once in a while
        size = {"size": bytes_held, "new_bytes": min(rest * 2, bytes_held), "row_bytes": live}
        if not options.is_due(chain, live):
            continue
        choice = options.choice(chain, **size)
        if choice == "none":
            continue
        cost = size["new_bytes"] if choice == "changed tables" else int(live * 1.05)
        chain = chain.based([], cost)
        uploaded, rest, bases = uploaded + cost, 0, bases + 1
    assert bases > 10
    assert uploaded <= 2.2 * changed
    assert chain.bytes < 2 * live


def test_a_load_pays_for_one_base_and_for_nothing_later() -> None:
    options = BaseOptions()
    size = {"size": 50 * MB, "new_bytes": 50 * MB, "row_bytes": 50 * MB}
    loaded = after(1, MB)  # 100 MB, which tables compress to the half
    assert options.choice(loaded, **size) == "changed tables"
    based = loaded.based([], 50 * MB)
    assert based.since_base == 0
    for epochs in (1, 44):
        assert options.choice(after(epochs, MB // ROW, based), **size) == "none"
    assert options.choice(after(46, MB // ROW, based), **size) == "changed tables"


def test_change_files_that_were_inherited_from_divided_shards_pay_for_no_base() -> None:
    options = BaseOptions()
    size = {"size": 50 * MB, "new_bytes": 50 * MB, "row_bytes": 50 * MB}
    assert options.choice(ReplayCost(files=9, rows=MB, bytes=100 * MB), **size) == "none"


def test_a_database_full_of_old_rows_is_merged_first() -> None:
    options = BaseOptions()
    chain = after(1, 3 * MB)
    size = {"size": 300 * MB, "new_bytes": 300 * MB, "row_bytes": 100 * MB}
    assert options.choice(chain, **size) == "merged"
    assert options.choice(after(1, MB).based([], 30 * MB), **size) == "none"


def test_without_bases_none_is_taken() -> None:
    options = BaseOptions(bases=False)
    size = {"size": 1, "new_bytes": 1, "row_bytes": 1}
    assert options.choice(after(1, MB).based([], 30 * MB), **size) == "none"


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(StateTypeError, match="replay_seconds=-1: give 0 or more"):
        BaseOptions(replay_seconds=-1)
    with pytest.raises(StateTypeError, match=r"uploaded_per_changed=0\.5: give 1 or more"):
        BaseOptions(uploaded_per_changed=0.5)
    with pytest.raises(StateTypeError, match="replay_seconds=nan"):
        BaseOptions(replay_seconds=float("nan"))
