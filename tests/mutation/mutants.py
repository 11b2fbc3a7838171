"""The faults: each replaces a piece of one file of statekit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Parameters:
        name: for the command line.
        what: is wrong, for people.
        file: below the package.
        before, after: lines of that file, and what takes their place. They begin with a line break,
            for the eye.
        subjects: that use these lines, and are checked; none for those of all faults.
    """

    name: str
    what: str
    file: str
    before: str
    after: str
    subjects: tuple[str, ...] = ()

    def put_into(self, package: Path) -> None:
        """Put the fault into a copy of the package."""
        path, before, after = package / self.file, self.before[1:], self.after[1:]
        source = path.read_text()
        found = source.count(before)
        if found != 1:
            raise ValueError(f"{self.name}: the lines occur {found} times in {self.file}")
        path.write_text(source.replace(before, after))


KEYS = [
    Mutant(
        "shard-of-group",
        "a key group is routed to another shard than the one that owns it",
        "keygroup.py",
        """
    return group * shards // groups
""",
        """
    return (group + 1) * shards // groups if group + 1 < groups else shards - 1
""",
    ),
    Mutant(
        "group-range",
        "a shard lacks its last key group",
        "keygroup.py",
        """
    return -(-shard * groups // shards), -(-(shard + 1) * groups // shards) - 1
""",
        """
    first, last = -(-shard * groups // shards), -(-(shard + 1) * groups // shards) - 1
    return first, max(first, last - 1) if shard + 1 < shards else last
""",
    ),
    Mutant(
        "timer-group",
        "the index of due timers has a wrong key group",
        "state/timers.py",
        """
    return group + row[:_NAMED] + key + row[_NAMED:]
""",
        """
    return group[:1] + bytes([group[1] ^ 1]) + row[:_NAMED] + key + row[_NAMED:]
""",
    ),
    Mutant(
        "hash-of-int",
        "the hash of an int depends on the process",
        "keygroup.py",
        """
        return _hash64(value.to_bytes(8, "little", signed=True), seed)
    except OverflowError:""",
        """
        return _hash64(value.to_bytes(8, "little", signed=True), seed + hash("seed") % 97)
    except OverflowError:""",
    ),
]

CHANGES = [
    Mutant(
        "delete-dropped",
        "a deletion is not added to the changes",
        "state/row_cache.py",
        """
            self._scope.batch.delete(self._name, row_key)
""",
        """
            pass
""",
    ),
    Mutant(
        "range-dropped",
        "clearing a list or map does not delete its stored rows",
        "state/base.py",
        """
            self._scope.batch.delete_range(self._name, prefix, prefix_end(prefix))
""",
        """
            pass
""",
    ),
    Mutant(
        "mutations-swapped",
        "the mutations of a batch are stored in reverse order",
        "backend/change_file.py",
        """
    ]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA)
""",
        """
    ]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA).take(
        pa.array(range(len(batch) - 1, -1, -1))
    )
""",
    ),
    Mutant(
        "mutation-lost",
        "the last mutation of each batch is not stored",
        "backend/change_file.py",
        """
    ]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA)
""",
        """
    ]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA)[: max(1, len(batch) - 1)]
""",
    ),
    Mutant(
        "copy-not-written",
        "the last changes of an epoch are stored, and not written to the working copy",
        "runtime/shard.py",
        """
            if len(batch):
                copy.write(batch)
""",
        """
            if len(batch) > 3:
                copy.write(batch)
""",
    ),
    Mutant(
        "changes-not-stored",
        "the last changes of an epoch are written to the working copy, and not stored",
        "runtime/shard.py",
        """
            if len(batch):
                changes.append(batch)
""",
        """
            if len(batch) > 1:
                changes.append(batch)
""",
    ),
    Mutant(
        "file-order",
        "change files are applied in reverse order",
        "checkpoint/repository.py",
        """
        for ref in refs:
            for batch in self.batches(ref):
                backend.write""",
        """
        for ref in reversed([*refs]):
            for batch in self.batches(ref):
                backend.write""",
    ),
    Mutant(
        "manifest-before-files",
        "an epoch is committed before its last change file is stored",
        "checkpoint/repository.py",
        """
        return self.put_file(path, file, rows).model_copy(update={"local": local})
""",
        """
        reference = Repository.in_memory().put_file(path, file, rows)
        waiting = self.__dict__.setdefault("waiting", [])
        file.seek(0)
        waiting.append((path, file.read()))
        if len(waiting) > 1:
            self.replace(*waiting.pop(0))
        return reference.model_copy(update={"local": local})
""",
    ),
]

STATES = [
    Mutant(
        "row-of-another-key",
        "a value is read from the key that was read before",
        "state/single_row_states.py",
        """
        if value is UNKNOWN:
            value = self._load(prefix)
        if value is ABSENT:
            if self._immutable or""",
        """
        if value is UNKNOWN:
            value = self._known.get(next(iter(self._known), prefix), UNKNOWN)
            value = self._load(prefix) if value is UNKNOWN else value
        if value is ABSENT:
            if self._immutable or""",
    ),
    Mutant(
        "default-ignored",
        "a default is not returned",
        "state/single_row_states.py",
        """
                return self._default  # type: ignore[no-any-return] # cast() takes time here
""",
        """
                return None
""",
    ),
    Mutant(
        "reduce-swapped",
        "the arguments of a reducer are swapped",
        "state/single_row_states.py",
        """
                value = self._combine(current, value)
""",
        """
                value = self._combine(value, current)
""",
    ),
    Mutant(
        "cleared-value-back",
        "a cleared value is there again at the next key",
        "state/single_row_states.py",
        """
        if self._known.get(prefix, UNKNOWN) is not ABSENT:
            self._drop(prefix)
""",
        """
        if self._known.get(prefix, UNKNOWN) is not ABSENT:
            self._known[prefix] = ABSENT
""",
    ),
    Mutant(
        "list-order",
        "elements that are appended together are stored in reverse order",
        "state/list_state.py",
        """
        positions = numbered(self._position, self._appended, count)
""",
        """
        positions = numbered(self._position, self._appended, count)[::-1]
""",
    ),
    Mutant(
        "list-position",
        "elements of a later flush take the places of earlier ones",
        "state/list_state.py",
        """
        self._appended += count
        row_keys""",
        """
        self._appended += count // 2
        row_keys""",
    ),
    Mutant(
        "scan-end",
        "a scan of a map includes its end",
        "state/map_state.py",
        """
            end = prefix + self.subkey(hi) + (_NEXT if has_hi else b"")
""",
        """
            end = prefix + self.subkey(hi) + _NEXT
""",
    ),
    Mutant(
        "pending-deletion",
        "a map shows an entry that was deleted in this epoch",
        "state/map_state.py",
        """
        if upcoming == row_key:
            if cached[row_key] is not ABSENT:
                yield row_key, cached[row_key], False
            upcoming = next(waiting, None)
        else:
            yield row_key, row, True
""",
        """
        if upcoming == row_key and cached[row_key] is not ABSENT:
            yield row_key, cached[row_key], False
            upcoming = next(waiting, None)
        else:
            upcoming = next(waiting, None) if upcoming == row_key else upcoming
            yield row_key, row, True
""",
    ),
    Mutant(
        "map-key-remembered",
        "the row key of a map entry is remembered for another key",
        "state/map_state.py",
        """
        if last is key and at is prefix:
            return row_key
""",
        """
        if last is key:
            return row_key
""",
    ),
    Mutant(
        "size-miscounted",
        "a replaced row is counted once more",
        "state/row_cache.py",
        """
        self.rows_added += before.count(0)
        self.bytes_added += self._scope.batch.put_all(self._name, row_keys, rows) - sum(before)
""",
        """
        self.rows_added += len(before)
        self.bytes_added += self._scope.batch.put_all(self._name, row_keys, rows) - sum(before)
""",
    ),
]

TIMERS = [
    Mutant(
        "timer-stays",
        "a timer that has fired is not removed",
        "state/timers.py",
        """
            if is_set:
                timers._change(row, False)
            if is_set or not""",
        """
            if is_set or not""",
    ),
    Mutant(
        "timer-skipped",
        "a timer exactly at the watermark is skipped",
        "state/timers.py",
        r"""
        end = start + self._now[tag] + b"\xff"  # after all names, which are UTF-8
""",
        """
        end = start + self._now[tag]
""",
    ),
    Mutant(
        "timer-not-joined",
        "a timer that is set for the past does not fire",
        "state/timers.py",
        """
                self.set_due.add(CLOCKS[row[0]])
""",
        """
                pass
""",
    ),
    Mutant(
        "timer-replaced-only",
        "replacing a timer leaves the old ones",
        "state/timers.py",
        """
            if other[_NAMED:] == row[_NAMED:] and other != row:
                self._change(other, False)
""",
        """
            if other[_NAMED:] != row[_NAMED:] and other != row:
                self._change(other, False)
""",
    ),
    Mutant(
        "wakes-late",
        "a shard wakes at its last timer, not at its first",
        "runtime/task.py",
        """
        self.wake_us[clock] = min(at_us, self.wake_us.get(clock, at_us))
""",
        """
        self.wake_us[clock] = max(at_us, self.wake_us.get(clock, at_us))
""",
    ),
    Mutant(
        "wake-lost",
        "a shard forgets when to wake if it has records",
        "runtime/shard.py",
        """
        shard = report.shard.model_copy(update={"wake_us": task.wake_us, **counts})
""",
        """
        shard = report.shard.model_copy(
            update={"wake_us": {} if task.records_out else task.wake_us, **counts}
        )
""",
    ),
    Mutant(
        "clock-forgotten",
        "timers of processing time fire only if others are due",
        "runtime/task.py",
        """
        return clock in self._plan.due_clocks or clock in set_due
""",
        """
        return clock in self._plan.due_clocks[:1] or clock in set_due
""",
    ),
    Mutant(
        "timer-order",
        "due timers of a key fire in any order",
        "state/timers.py",
        """
    return row[_AT], row
""",
        """
    return row[_NAMED:], row
""",
    ),
]

EVENT_TIME = [
    Mutant(
        "watermark-ahead",
        "the watermark is ahead by one microsecond",
        "watermark.py",
        """
    return max(watermark, seen if seen in (BEGINNING, END) else seen - lateness)
""",
        """
    return max(watermark, seen if seen in (BEGINNING, END) else seen - lateness + 1)
""",
    ),
    Mutant(
        "watermark-back",
        "the watermark goes back",
        "watermark.py",
        """
    return max(watermark, seen if seen in (BEGINNING, END) else seen - lateness)
""",
        """
    return seen if seen in (BEGINNING, END) else seen - lateness
""",
    ),
    Mutant(
        "late-record",
        "a record at the watermark is not late",
        "watermark.py",
        """
    return event_time <= watermark
""",
        """
    return event_time < watermark
""",
    ),
    Mutant(
        "largest-of-one",
        "the largest event time is that of the last shard",
        "runtime/shard_reports.py",
        """
                largest[stream] = max(times_known)
""",
        """
                largest[stream] = times_known[-1]
""",
    ),
    Mutant(
        "buffer-not-emptied",
        "buffered records stay after they were handled",
        "state/event_time_buffer.py",
        r"""
            self.batch.delete_range(WAITING, rows[0], rows[-1] + b"\x00")
""",
        """
            self.batch.delete_range(WAITING, rows[0], rows[-1])
""",
    ),
    Mutant(
        "buffer-end",
        "a buffered record exactly at the watermark waits",
        "state/event_time_buffer.py",
        """
        start, behind = pack_group(group), sortable_micros(self._now + 1)
""",
        """
        start, behind = pack_group(group), sortable_micros(self._now)
""",
    ),
    Mutant(
        "ties-by-arrival",
        "records of one time are handled in the order of their bytes, and not by `order_by`",
        "state/event_time_buffer.py",
        """
            records += ties if len(ties) < 2 else self.tie_order(ties)
""",
        """
            records += ties
""",
    ),
]

EXPIRY = [
    Mutant(
        "expired-row-read",
        "a row is read at the instant at which it expires",
        "state/ttl.py",
        """
        return (None if written <= self._expired_until else value), written
""",
        """
        return (None if written < self._expired_until else value), written
""",
    ),
    Mutant(
        "read-does-not-refresh",
        "a read does not restart the TTL",
        "state/ttl.py",
        """
        self.refreshes = ttl is not None and ttl.refresh == "read"
""",
        """
        self.refreshes = False
""",
    ),
    Mutant(
        "sweep-of-live-rows",
        "a sweep deletes rows that have been written again",
        "state/ttl.py",
        """
            if value is None:
                yield self._removed(row_key, row, removed_keys)
            elif written""",
        """
            if written != PERMANENT:
                yield self._removed(row_key, row, removed_keys)
            elif written""",
    ),
    Mutant(
        "expired-rows-stay",
        "expired rows are never removed",
        "runtime/task.py",
        """
        if self._expiring and self._plan.due_clocks:
            self._sweep()
""",
        """
        if self._expiring and not self._plan.due_clocks:
            self._sweep()
""",
    ),
    Mutant(
        "processing-time-back",
        "processing time follows a clock that is set back",
        "runtime/coordinator.py",
        """
        return max(processing_time_us, before)
""",
        """
        return min(processing_time_us, before) if before > 0 else processing_time_us
""",
    ),
]

COPIES = [
    Mutant(
        "stale-copy",
        "a working copy of another attempt is trusted, in memory",
        "working_copy/copies.py",
        """
        if backend is None or attempt != base.attempt:
""",
        """
        if backend is None:
""",
    ),
    Mutant(
        "failed-copy-kept",
        "a working copy with changes of a failed epoch is trusted, in memory",
        "working_copy/copies.py",
        """
        if not self.written:
            self.close_at(self.base)
""",
        """
        self.close_at(self.base)
""",
    ),
    Mutant(
        "missed-changes",
        "a working copy on disk does not get the changes that it missed",
        "working_copy/copies.py",
        """
                repository.replay(self.backend, missed, *plan.base.groups)
""",
        """
                missed = missed[:0]
""",
    ),
    Mutant(
        "files-after-base",
        "the change files after a base are lost when it is adopted",
        "working_copy/base_lifecycle.py",
        """
        contents = {"base": finished.base, "history": None, "slices": (), "files": later}
""",
        """
        contents = {"base": finished.base, "history": None, "slices": (), "files": later[1:]}
""",
    ),
]

PARALLELISM = [
    Mutant(
        "redistributed-twice",
        "a part of operator state is merged twice",
        "state/redistribution.py",
        """
            moved.append(parts[0] if alone else hooks.merge(new, present))
""",
        """
            moved.append(parts[0] if alone else hooks.merge(new, [*present, present[0]]))
""",
    ),
    Mutant(
        "redistributed-old-rows",
        "the old rows of redistributed operator state stay",
        "state/redistribution.py",
        """
                batch.delete_range(name, pack_group(group), pack_group(group + 1))
""",
        """
                batch.delete_range(name, pack_group(group + 1), pack_group(group + 1))
""",
    ),
    Mutant(
        "even-remainder",
        "an even redistribution loses the remainder",
        "state/redistribution.py",
        """
    ends = [(shard + 1) * size + min(shard + 1, more) for shard in range(shards)]
""",
        """
    ends = [(shard + 1) * size for shard in range(shards)]
""",
    ),
    Mutant(
        "slice-boundary",
        "a slice of a divided shard lacks its first key group",
        "checkpoint/shard_layout.py",
        """
                slices.append(piece.model_copy(update={"first_group": start, "last_group": end}))
""",
        """
                start = min(start + 1, end)
                slices.append(piece.model_copy(update={"first_group": start, "last_group": end}))
""",
    ),
    Mutant(
        "wake-of-slices",
        "a divided shard forgets when to wake",
        "checkpoint/shard_layout.py",
        """
            "wake_us": _soonest(changed),
""",
        """
            "wake_us": _soonest(changed[:0]),
""",
    ),
    Mutant(
        "batch-within",
        "a change file is applied to key groups of other shards",
        "backend/mutation.py",
        """
        wanted = [s in states and start <= k < end for s, k in zip(self.states, keys, strict=True)]
""",
        """
        wanted = [s in states and start <= k for s, k in zip(self.states, keys, strict=True)]
""",
    ),
]

EPOCHS = [
    Mutant(
        "offsets-not-committed",
        "the position in the input is not committed",
        "runtime/coordinator.py",
        """
            offsets=offsets if offsets is not None else (previous.offsets if previous else {}),
""",
        """
            offsets=previous.offsets if previous else {},
""",
    ),
    Mutant(
        "rollback-to-wrong",
        "a rollback keeps the rows of the epoch before its target",
        "checkpoint/rollback.py",
        """
        manifest = standing_at(target, "rollback", last.epoch + 1, time_us)
""",
        """
        earlier = target if target.previous is None else repository.manifest(target.previous)
        manifest = standing_at(
            target.model_copy(update={"operators": earlier.operators}),
            "rollback",
            last.epoch + 1,
            time_us,
        )
""",
    ),
    Mutant(
        "owner-unchecked",
        "an epoch that another run has committed is committed again",
        "checkpoint/repository.py",
        """
        self.create(paths.epoch_path(manifest.epoch), stored.to_bytes())
""",
        """
        self.replace(paths.epoch_path(manifest.epoch), stored.to_bytes())
""",
    ),
    Mutant(
        "collected-file-named",
        "garbage collection deletes a file that a history still names",
        "checkpoint/gc/kept_files.py",
        """
                    for file in self._gone.of_shard(shard):
                        if file.ref.path not in self._paths:
                            yield file.ref
""",
        """
                    yield from (file.ref for file in self._gone.of_shard(shard))
""",
    ),
]

MUTANTS = [*KEYS, *CHANGES, *STATES, *TIMERS, *EVENT_TIME, *EXPIRY, *COPIES, *PARALLELISM, *EPOCHS]
