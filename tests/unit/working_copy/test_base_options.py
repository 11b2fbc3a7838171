from __future__ import annotations

from collections import Counter

import pytest

from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import Chain
from statekit.errors import StateTypeError
from statekit.working_copy.base_options import BaseOptions, Database

ROW = 100
MB = 1_000_000


def after(epochs: int, rows: int, chain: Chain | None = None) -> Chain:
    """A chain of that many epochs, each with so many rows that cannot be compressed."""
    made = chain or Chain()
    file = FileRef(path="data/o/x", size=rows * ROW + 1500, checksum="0" * 32, rows=rows)
    for _ in range(epochs):
        made = made.followed_by(file, rows * ROW)
    return made


def test_few_changes_are_not_worth_a_base_and_many_are() -> None:
    options = BaseOptions()
    assert not options.is_worth_it(Chain(), 0)
    assert not options.is_worth_it(after(1, 100_000), 100_000 * ROW)
    assert options.is_worth_it(after(1, 1_000_000), MB * ROW)
    assert options.is_worth_it(after(200, 1), 200 * ROW)  # a trip for each file


def test_the_larger_the_state_the_longer_its_chain_may_be() -> None:
    options = BaseOptions()
    chain = after(1, 1_000_000)
    assert options.is_worth_it(chain, 100 * MB)
    assert not options.is_worth_it(chain, 1000 * MB)


def test_a_first_base_comes_behind_what_was_loaded() -> None:
    options = BaseOptions()
    chain = after(1, MB)
    size = Database(bytes=105 * MB, new_bytes=105 * MB, row_bytes=100 * MB)
    assert options.choice(chain, size) == "changed tables"
    assert options.choice(chain.replaced_by([], 105 * MB), size) == "none"


def test_what_is_changed_pays_for_what_is_uploaded() -> None:
    """Whatever is in the database, 10,000 epochs upload no more than was agreed."""
    options = BaseOptions()
    chain, uploaded, changed, rest = Chain(), 0, 0, 0
    live, bases, bytes_held = 20 * MB, 0, 20 * MB
    for _ in range(10_000):
        chain = after(1, 500, chain)
        uploaded += 500 * ROW + 1500
        changed += 500 * ROW
        rest += 500 * ROW
        bytes_held = live + rest % live  # as if everything were merged once in a while
        size = Database(bytes=bytes_held, new_bytes=min(rest * 2, bytes_held), row_bytes=live)
        if not options.is_worth_it(chain, live):
            continue
        choice = options.choice(chain, size)
        if choice == "none":
            continue
        cost = size.new_bytes if choice == "changed tables" else int(live * 1.05)
        chain = chain.replaced_by([], cost)
        uploaded, rest, bases = uploaded + cost, 0, bases + 1
    assert bases > 10
    assert uploaded <= 2 * changed
    assert chain.bytes < 2 * live


def test_what_is_left_of_a_loads_credit_pays_for_nothing_later() -> None:
    options = BaseOptions()
    loaded = Chain().followed_by(
        FileRef(path="data/o/x", size=20 * MB, checksum="0" * 32, rows=MB), 100 * MB
    )
    based = options.settled(loaded.replaced_by([], 50 * MB))
    assert options.credit(loaded) == 170 * MB
    assert options.credit(based) == 0
    later = based.followed_by(FileRef(path="y", size=MB, checksum="0" * 32, rows=9), 10 * MB)
    assert options.credit(later) == 18 * MB
    in_debt = options.settled(later.replaced_by([], 30 * MB))
    assert options.credit(in_debt) == -12 * MB


def test_shards_that_were_loaded_together_take_later_bases_at_different_times() -> None:
    options = BaseOptions()
    size = Database(bytes=50 * MB, new_bytes=50 * MB, row_bytes=50 * MB)
    waited = []
    for first_group in range(0, 1024, 64):
        chain, epochs = options.staggered(Chain(), size.row_bytes, first_group), 0
        while options.choice(chain, size) == "none":
            chain, epochs = after(1, MB // ROW, chain), epochs + 1
        waited.append(epochs)
    assert min(waited) <= 46, "nothing to wait for but what it costs"
    assert max(waited) >= 66
    assert max(Counter(waited).values()) <= 2, "all others at epochs of their own"


def test_a_database_full_of_old_rows_is_merged_first() -> None:
    options = BaseOptions()
    chain = after(1, 3 * MB)
    size = Database(bytes=300 * MB, new_bytes=300 * MB, row_bytes=100 * MB)
    assert options.choice(chain, size) == "merged"
    assert options.choice(after(1, MB).replaced_by([], 30 * MB), size) == "none"


def test_without_bases_none_is_taken() -> None:
    options = BaseOptions(bases=False)
    size = Database(bytes=1, new_bytes=1, row_bytes=1)
    assert options.choice(after(1, MB).replaced_by([], 30 * MB), size) == "none"


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(StateTypeError, match="replay_seconds=-1: give 0 or more"):
        BaseOptions(replay_seconds=-1)
    with pytest.raises(StateTypeError, match=r"uploaded_per_changed=0\.5: give 1 or more"):
        BaseOptions(uploaded_per_changed=0.5)
    with pytest.raises(StateTypeError, match="replay_seconds=nan"):
        BaseOptions(replay_seconds=float("nan"))
