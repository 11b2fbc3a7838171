"""The table that a sink of PostgreSQL writes to: made from the schema of outputs, or extended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statekit.connectors.postgres import PostgresSession, is_absent, is_name, quoted_name
from statekit.errors import StateSchemaError
from statekit.shown import shown
from statekit.sinks.database.postgres_columns import PostgresColumn, column_types

OWN_PREFIX = "_statekit_"
"""Tables and columns of sinks begin with it."""

_COLUMNS = """
SELECT a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
    format_type(a.atttypid, a.atttypmod), a.atttypmod, t.typtype = 'e',
    NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '',
    a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_KIND_AND_NAME = """
SELECT c.relkind::text, format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%(name)s)
"""

_UNIQUE_KEYS = """
SELECT (SELECT array_agg(a.attname::text) FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k)
FROM pg_index i
WHERE i.indrelid = to_regclass(%(name)s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
"""


@dataclass(frozen=True)
class TargetTable:
    """A table, and the fields of outputs that are its columns.

    Parameters:
        names: its schema, if any, and its name.
        schema: of the outputs.
        sink: the name of the sink, for messages.
        key: the fields by which rows are updated; empty if rows are only added.
        delete: the field that marks rows to be deleted, which has no column; None if there is none.
        epoch_column: the column with the number of the epoch; None if there is none.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    sink: str
    key: tuple[str, ...] = ()
    delete: str | None = None
    epoch_column: str | None = None

    @cached_property
    def name(self) -> str:
        """The name as SQL."""
        return quoted_name(*self.names)

    def own(self, name: str) -> str:
        """Return the name of a table of the sink, as SQL: it is in the schema of this one."""
        return quoted_name(*self.names[:-1], OWN_PREFIX + name)

    @cached_property
    def fields(self) -> list[pa.Field]:
        """The fields of the outputs that are columns."""
        return [field for field in self.schema if field.name != self.delete]

    @cached_property
    def stored_fields(self) -> list[pa.Field]:
        """All fields that are columns of the table, with the epoch."""
        epoch = [] if self.epoch_column is None else [pa.field(self.epoch_column, pa.int64())]
        return [*self.fields, *epoch]

    def check_fields(self) -> None:
        """Check that the outputs have the fields that the options name.

        Raises:
            StateSchemaError: they do not.
        """
        types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for name in (*self.key, *([] if self.delete is None else [self.delete])):
            if name not in types:
                raise self._error(f"has no field {name!r}, only {', '.join(types)}")
        if self.delete is not None and not pa.types.is_boolean(types[self.delete]):
            raise self._error(f"has {types[self.delete]} in delete={self.delete!r}, and not bool")
        if self.epoch_column in types:
            raise self._error(
                f"has a field {self.epoch_column!r}, which is the column of the epoch: give "
                "another name with epoch_column="
            )
        for name in types:
            if not is_name(name) or name.startswith(OWN_PREFIX):
                raise self._error(
                    f"has a field {shown(name)}: names of columns have at most 63 bytes, and "
                    f"{OWN_PREFIX} is the prefix of the sink's own"
                )

    def _error(self, what: str) -> StateSchemaError:
        return StateSchemaError(f"sink {self.sink!r}: its output {what}. Nothing was written")

    # ---------------------------------------------------------------------------- at the start

    def prepare(self, session: PostgresSession, *, is_owned: bool = False) -> str:
        """Make or extend the table, and return its name with its schema.

        Parameters:
            is_owned: whether `empty` is to adapt the columns.

        Raises:
            StateSchemaError: the table has columns that do not fit.
        """
        self.check_fields()
        if is_absent(session, self.name):
            self._create(session)
        kind, name = session.rows(_KIND_AND_NAME, name=self._plain)[0]
        if kind not in ("r", "p"):
            raise self._misfit("is no table", "choose a table")
        if not is_owned:
            self._extend(session)
            if self.key:
                self._check_key(session)
        return str(name)

    def check_rights(self, session: PostgresSession) -> None:
        """Check that the user may change rows of the table.

        Raises:
            StateSchemaError: it may not.
        """
        statement = "SELECT has_table_privilege(to_regclass(%(name)s), %(right)s)"
        needed = ("SELECT", "INSERT", "DELETE", *(("UPDATE",) if self.key else ()))
        missing = [
            right
            for right in needed
            if not session.rows(statement, name=self._plain, right=right)[0][0]
        ]
        if missing:
            raise self._misfit(
                f"does not allow {', '.join(missing)} for this user",
                f"GRANT {', '.join(missing)} ON {self._plain}",
            )

    def empty(self, session: PostgresSession) -> None:
        """Remove all rows, and replace columns that do not fit.

        Raises:
            StateSchemaError: the table still does not fit.
        """
        session.run(f"DELETE FROM {self.name}")
        wanted = {field.name: field for field in self.stored_fields}
        for column in list(self._all_columns(session)):
            own = wanted.get(column.name)
            if column.is_optional if own is None else column.takes(own):
                continue
            session.run(f"ALTER TABLE {self.name} DROP COLUMN {quoted_name(column.name)}")
            if column.name in self.key:
                type_ = column_types(wanted[column.name])[0]
                session.run(
                    f"ALTER TABLE {self.name} ADD COLUMN {quoted_name(column.name)} {type_}"
                )
        if self.key and not self._has_key(session):
            session.run(f"ALTER TABLE {self.name} ADD PRIMARY KEY ({self.key_list})")
        self._extend(session)

    def _create(self, session: PostgresSession) -> None:
        columns = [
            f"{quoted_name(field.name)} {column_types(field)[0]}" for field in self.stored_fields
        ]
        if self.key:
            columns.append(f"PRIMARY KEY ({self._list(self.key)})")
        session.run(f"CREATE TABLE {self.name} ({', '.join(columns)})")
        if self.epoch_column is not None and not self.key:
            # Epochs grow with the table: the index is small, and finds what a rollback removes.
            column = quoted_name(self.epoch_column)
            session.run(f"CREATE INDEX ON {self.name} USING brin ({column})")

    def _extend(self, session: PostgresSession) -> None:
        """Add columns for new fields, and check all others."""
        columns = {column.name: column for column in self._all_columns(session)}
        for field in self.stored_fields:
            type_ = column_types(field)[0]
            if (column := columns.pop(field.name, None)) is None:
                if field.name in self.key:
                    raise self._misfit(f"has no column {field.name!r} of the key", "add it")
                session.run(f"ALTER TABLE {self.name} ADD COLUMN {quoted_name(field.name)} {type_}")
            elif not column.takes(field):
                generated = " and is set by the server" if column.is_generated else ""
                raise self._misfit(
                    f"has the type {column.full_type} in column {column.name!r}{generated}, where "
                    f"{field.type} needs {type_}",
                    f"change the column, as with ALTER TABLE … ALTER COLUMN … TYPE {type_}",
                )
        missing = [column.name for column in columns.values() if not column.is_optional]
        if missing:
            raise self._misfit(
                f"has columns without a default that may not be null, and that the output does "
                f"not have: {', '.join(map(repr, missing))}",
                "add the fields, or ALTER TABLE … ALTER COLUMN … DROP NOT NULL",
            )

    def _check_key(self, session: PostgresSession) -> None:
        if not self._has_key(session):
            raise self._misfit(
                f"has no unique index on exactly {', '.join(self.key)}",
                f"CREATE UNIQUE INDEX ON {self._plain} ({self.key_list.replace('%%', '%')})",
            )

    def _has_key(self, session: PostgresSession) -> bool:
        unique = session.rows(_UNIQUE_KEYS, name=self._plain)
        return any(sorted(names) == sorted(self.key) for (names,) in unique)

    def _misfit(self, what: str, advice: str) -> StateSchemaError:
        return StateSchemaError(
            f"sink {self.sink!r}: {self._plain} {what}. Nothing was written: {advice}, or choose "
            "another table"
        )

    # ----------------------------------------------------------------------------- its columns

    @property
    def _plain(self) -> str:
        """The name as SQL in a value or in a message, where a percent sign stands for itself."""
        return self.name.replace("%%", "%")

    def _all_columns(self, session: PostgresSession) -> Iterator[PostgresColumn]:
        for row in session.rows(_COLUMNS, name=self._plain):
            yield PostgresColumn(*row)

    def columns(self, session: PostgresSession) -> list[PostgresColumn]:
        """Return the columns of the stored fields, in their order.

        Raises:
            StateSchemaError: the table does not have them any more.
        """
        columns = {column.name: column for column in self._all_columns(session)}
        missing = [field.name for field in self.stored_fields if field.name not in columns]
        if missing:
            raise self._misfit(
                f"is not there, or without columns {', '.join(map(repr, missing))}, which were "
                "there when the run began",
                "start again, which adds them",
            )
        return [columns[field.name] for field in self.stored_fields]

    @staticmethod
    def _list(names: Sequence[str]) -> str:
        return ", ".join(map(quoted_name, names))

    @property
    def stored_list(self) -> str:
        """The names of all columns that the sink writes, as SQL."""
        return self._list([field.name for field in self.stored_fields])

    @property
    def field_list(self) -> str:
        """The names of the columns of the outputs, as SQL."""
        return self._list([field.name for field in self.fields])

    @property
    def key_list(self) -> str:
        """The names of the key, as SQL."""
        return self._list(self.key)
