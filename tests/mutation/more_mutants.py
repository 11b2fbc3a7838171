"""More faults: of windows, aggregates, stores, several inputs, operator state, maps and readers.

Each is looked for in the checks of `job_subjects` that use what it changes.
"""

from __future__ import annotations

from tests.mutation.mutants import Mutant

_SLIDING = "job/windows/sliding.py"
_SESSIONS = "job/windows/sessions.py"
_INSTANTS = "job/windows/instants.py"
_OPEN = "job/windows/open_windows.py"
_COLUMNS = "job/windows/window_columns.py"
_ELEMENTS = "job/windows/elements.py"
_ACCUMULATION = "job/windows/accumulation.py"

WINDOWS = [
    Mutant(
        "window-too-long",
        "a record at the end of a window is in it",
        _SLIDING,
        """
            contains = (starts > times - size_us) & (starts > MIN_MICROS - every_us)
""",
        """
            contains = (starts >= times - size_us) & (starts > MIN_MICROS - every_us)
""",
        ("sliding",),
    ),
    Mutant(
        "offset-ignored",
        "windows are combined as if they began at full minutes, and fire as if not",
        _SLIDING,
        """
        origin_us = timedelta_to_micros(self.offset % self.every)
        return SlidingPanes""",
        """
        origin_us = 0
        return SlidingPanes""",
        ("sliding",),
    ),
    Mutant(
        "gap-included",
        "records exactly a gap apart are in one session",
        _INSTANTS,
        """
    return (start < last or last == LAST) and (first < end or end == LAST)
""",
        """
    return (start <= last or last == LAST) and (first <= end or end == LAST)
""",
        ("sessions",),
    ),
    Mutant(
        "session-shortened",
        "a record in the middle of a session shortens it",
        _SESSIONS,
        """
        start, end = min(start, joined[0].start), max(end, joined[-1].end)
""",
        """
        start = min(start, joined[0].start)
""",
        ("sessions",),
    ),
    Mutant(
        "session-starts-late",
        "a record before a session does not move its start",
        _SESSIONS,
        """
        start, end = min(start, joined[0].start), max(end, joined[-1].end)
""",
        """
        start, end = joined[0].start, max(end, joined[-1].end)
""",
        ("sessions",),
    ),
    Mutant(
        "closes-a-microsecond-late",
        "a window waits for a watermark at its end, and not a microsecond before",
        _OPEN,
        """
        self.margin = _ZERO if ordered or clock == "processing" else _MICROSECOND
""",
        """
        self.margin = _ZERO
""",
        ("sliding",),
    ),
    Mutant(
        "fires-once-only",
        "a window that has fired does not fire again for late records",
        _OPEN,
        """
        elif self.deadlines.has_closed(ctx, end):
            self.deadlines.close_again(ctx, end)
        return accumulator
""",
        """
        return accumulator
""",
        ("kept_windows",),
    ),
    Mutant(
        "elements-of-next-window",
        "a window that fires deletes elements that are in the next one, too",
        _ELEMENTS,
        """
            first, end = self._bounds(prefix, *self._alone(*window))
            removed += [row for row in own if first <= row[0] < end]
""",
        """
            removed += own
""",
        ("sliding",),
    ),
    Mutant(
        "numbers-again",
        "elements of a key are numbered from 0 again while it has windows",
        _ELEMENTS,
        """
        prefixes = sorted(self._fired - self._kept)
""",
        """
        prefixes = sorted(self._fired)
""",
        ("sliding",),
    ),
    Mutant(
        "wakes-for-last-window",
        "a shard wakes for the last window that is open, and not for the first",
        _COLUMNS,
        """
                soonest = next_us if soonest is None else min(soonest, next_us)
""",
        """
                soonest = next_us if soonest is None else max(soonest, next_us)
                soonest = max(window.due_us for window in of_rows)
""",
        ("sliding",),
    ),
]

AGGREGATES = [
    Mutant(
        "mean-counts-batches",
        "the number of values of a mean is that of the batches",
        _ACCUMULATION,
        """
    return lambda current, more: (add(current[0], more[0]), current[1] + more[1])
""",
        """
    return lambda current, more: (add(current[0], more[0]), current[1] + 1)
""",
        ("aggregates",),
    ),
    Mutant(
        "ties-dropped",
        "records that are equal to the last one of the top are not kept",
        "records/record_order.py",
        """
            if comes_after and (self.ties is None or soonest[: self.ties] != last[: self.ties]):
""",
        """
            if comes_after:
""",
        ("aggregates",),
    ),
    Mutant(
        "list-of-new-first",
        "the result of a list has the new elements before the old ones",
        "state/list_state.py",
        """
            found.append(list(map(self._decode, chain(held, rows))))
""",
        """
            found.append(list(map(self._decode, chain(rows, held))))
""",
        ("aggregates",),
    ),
    Mutant(
        "expired-aggregate-goes-on",
        "an aggregate that expired is added to all the same",
        "state/ttl.py",
        """
        return (None if written <= self._expired_until else value), written
""",
        """
        return value, written
""",
        ("aggregates",),
    ),
]

STORES = [
    Mutant(
        "zero-is-absent",
        "a value of 0 counts as an absent one for put_if_absent",
        "kv/operations.py",
        """
        if held is not None:
            return False, held
        layout.write(""",
        """
        if held:
            return False, held
        layout.write(""",
        ("store",),
    ),
    Mutant(
        "swap-keeps-removed",
        "compare_and_set does not remove a value for None",
        "kv/operations.py",
        """
        elif held is not None:
            layout.remove(request, states)
        return True, value
""",
        """
        return True, value
""",
        ("store",),
    ),
    Mutant(
        "update-keeps-removed",
        "update does not remove a value for None",
        "kv/operations.py",
        """
        elif before is not None:
            layout.remove(request, states)
        return before, after
""",
        """
        return before, after
""",
        ("store",),
    ),
    Mutant(
        "limit-before-reverse",
        "a reversed scan with a limit has the first entries, and not the last",
        "kv/range_operations.py",
        """
            return (list(islice(self._entries(request, states), first, end)),)
""",
        """
            found = states.scan(**self.selected.of(request))
            entries = [self.entry(sort=sort, value=value) for sort, value in islice(found, end)]
            return (entries[:: -1 if self.reverse else 1][first:],)
""",
        ("sorted_store",),
    ),
    Mutant(
        "past-at-replacement",
        "at the instant of its replacement, a value is still there",
        "kv/layouts.py",
        """
        for replaced_at, replaced in former.scan(time, closed="none"):
""",
        """
        for replaced_at, replaced in former.scan(time, closed="both"):
""",
        ("past_store",),
    ),
    Mutant(
        "history-too-short",
        "a value is too old exactly at the end of the history",
        "kv/operations.py",
        """
        if request.at - request.as_of > layout.history:
""",
        """
        if request.at - request.as_of >= layout.history:
""",
        ("past_store",),
    ),
]

TIME = [
    Mutant(
        "largest-input",
        "the watermark of several inputs follows the one that is ahead",
        "runtime/coordinator.py",
        """
            reached = advanced(current, min(times, default=None), declared.lateness_us)
""",
        """
            reached = advanced(current, max(times, default=None), declared.lateness_us)
""",
        ("inputs",),
    ),
    Mutant(
        "lateness-ignored-behind",
        "an operator behind another ignores its own lateness",
        "runtime/coordinator.py",
        """
            reached = advanced(current, min(times, default=None), declared.lateness_us)
""",
        """
            is_first = any(self.job.is_source(name) for name in operator.inputs)
            lateness_us = declared.lateness_us if is_first else 0
            reached = advanced(current, min(times, default=None), lateness_us)
""",
        ("inputs",),
    ),
    Mutant(
        "late-at-watermark-lost",
        "a record exactly at the watermark is neither handled nor in the late stream",
        "runtime/local.py",
        """
        return lambda record: is_late(time_of(record), watermark)
""",
        """
        return lambda record: is_late(time_of(record) + 1, watermark)
""",
        ("inputs",),
    ),
    Mutant(
        "late-count-of-epoch",
        "the number of late records is that of the last epoch",
        "runtime/shard_reports.py",
        """
            late_so_far=late + (before.late_so_far if before else 0),
""",
        """
            late_so_far=late or (before.late_so_far if before else 0),
""",
        ("inputs",),
    ),
    Mutant(
        "input-forgotten",
        "the event time of an input is forgotten in an epoch without records of it",
        "runtime/shard_reports.py",
        """
            times += [before.largest_of(stream)] if before and stream in operator.inputs else []
""",
        """
            known = before.largest_of(stream) if before and stream in operator.inputs else None
            times += [known] if self._read(number) or not any(map(self._read, (0, 1))) else []
""",
        ("inputs",),
    ),
    Mutant(
        "timer-name-deleted",
        "deleting a timer that is not set sets it",
        "state/timers.py",
        """
        row = self._row(at, name, clock)
        if self._is_set(row):
            self._change(row, False)
""",
        """
        row = self._row(at, name, clock)
        self._change(row, not self._is_set(row))
""",
        ("maps",),
    ),
    Mutant(
        "timers-of-other-names",
        "a list of the timers of one name has those of all names",
        "state/timers.py",
        """
        return [timer_of_row(row) for row in rows if wanted in (None, row[_NAMED:])]
""",
        """
        return [timer_of_row(row) for row in rows]
""",
        ("maps",),
    ),
]

OPERATOR_STATE = [
    Mutant(
        "even-of-shards-swapped",
        "an even redistribution takes the old shards in reverse order",
        "state/redistribution.py",
        """
            elements = [row for rows in old_rows for _, row in rows]
""",
        """
            elements = [row for rows in reversed(old_rows) for _, row in rows]
""",
        ("shard_states",),
    ),
    Mutant(
        "union-once",
        "union gives all elements to the first shard only",
        "state/redistribution.py",
        """
            pieces = [elements] * shards
""",
        """
            pieces = [elements, *[elements[:0]] * (shards - 1)]
""",
        ("shard_states",),
    ),
    Mutant(
        "broadcast-of-first",
        "a broadcast redistribution gives every shard the state of the first",
        "state/redistribution.py",
        """
            return [old_rows[shard % len(old_rows)] for shard in range(shards)]
""",
        """
            return [old_rows[0] for shard in range(shards)]
""",
        ("shard_states",),
    ),
    Mutant(
        "merge-without-last",
        "the state of the last old shard is not merged",
        "state/redistribution.py",
        """
            moved.append(parts[0] if alone else hooks.merge(new, present))
""",
        """
            moved.append(parts[0] if alone else hooks.merge(new, present[:-1] or present))
""",
        ("shard_states",),
    ),
    Mutant(
        "moved-behind-new",
        "redistributed elements come behind those that are appended next",
        "state/redistribution.py",
        """
    start = epoch.to_bytes(6, "big")
""",
        """
    start = (epoch + 9).to_bytes(6, "big")
""",
        ("shard_states",),
    ),
]

STATES = [
    Mutant(
        "floor-below",
        "floor skips an entry with the very key",
        "state/map_state.py",
        """
        rows = self._rows_between(*self._bounds(None, key, "right"), reverse=True)
""",
        """
        rows = self._rows_between(*self._bounds(None, key), reverse=True)
""",
        ("maps",),
    ),
    Mutant(
        "first-write-counts",
        "an entry that is written again keeps the time of its first write",
        "state/ttl.py",
        """
                written = max(written, before)  # it may be written without reading the old row
""",
        """
                written = before if before > 0 else written
""",
        ("maps",),
    ),
    Mutant(
        "old-list-stays",
        "a list that is replaced keeps its last old element",
        "state/list_state.py",
        """
        rows = [self._row(value) for value in values]  # may be made from this very list
        self.clear()
""",
        """
        rows = [self._row(value) for value in values]  # may be made from this very list
        rows = [*self._pending_rows()[-1:], *rows]
        self.clear()
""",
        ("maps",),
    ),
]

READERS = [
    Mutant(
        "reader-shows-expired",
        "readers show rows that have expired",
        "query/rows/state_rows.py",
        """
        return (row for row in rows if unstamped(row[1], era)[1] > until)
""",
        """
        return iter(rows)
""",
        ("maps",),
    ),
    Mutant(
        "feed-without-deletions",
        "a feed leaves out rows that were deleted",
        "query/changes/state_changes.py",
        """
                        yield change_of_row(rows, row_key, row, stored.shard)
""",
        """
                        if row is not None:
                            yield change_of_row(rows, row_key, row, stored.shard)
""",
        ("maps",),
    ),
    Mutant(
        "feed-without-clears",
        "a feed leaves out that a key was cleared",
        "query/changes/net_changes.py",
        """
                batch.put(_CLEARED, key, value)
""",
        """
                pass
""",
        ("maps",),
    ),
    Mutant(
        "replica-without-last-batch",
        "a replica leaves out the first batch of an epoch",
        "query/replica/operator_copy.py",
        """
            self._write(self._batches(repository, before, after), Position.at(after))
""",
        """
            batches = [*self._batches(repository, before, after)]
            self._write(batches[1:], Position.at(after))
""",
        ("maps",),
    ),
]

MORE = [*WINDOWS, *AGGREGATES, *STORES, *TIME, *OPERATOR_STATE, *STATES, *READERS]
