"""Random SQL: what queries of states look like, and attempts at everything else that DuckDB can do.

`{}` stands for a directory with files that no query may read.
"""

from __future__ import annotations

from hypothesis import strategies as st

_FILES = st.sampled_from(
    [
        *("{}/secret.csv", "{}/secret.txt", "{}/secret.json", "{}/secret.parquet", "{}/*"),
        *("{}/secret.duckdb", "file://{}/secret.csv", "/etc/passwd", "/proc/self/environ"),
        *("http://127.0.0.1:1/x.csv", "s3://bucket/x.parquet", "../*/secret.csv", "0.parquet"),
    ]
)
_READERS = st.sampled_from(
    [
        *("read_csv", "read_csv_auto", "read_text", "read_blob", "read_parquet", "parquet_scan"),
        *("read_json", "read_json_auto", "read_ndjson", "glob", "parquet_metadata", "sniff_csv"),
        *("parquet_schema", "parquet_file_metadata", "read_duckdb", "sqlite_scan", "query_table"),
        *(
            "read_xlsx",
            "st_read",
            "delta_scan",
            "iceberg_scan",
            "postgres_scan",
            "read_json_objects",
        ),
    ]
)
_SELF = st.sampled_from(
    [
        *("duckdb_settings()", "duckdb_secrets()", "duckdb_extensions()", "duckdb_databases()"),
        *("duckdb_temporary_files()", "pragma_database_list()", "pragma_storage_info('states')"),
        *("duckdb_views()", "duckdb_functions()", "duckdb_variables()", "duckdb_memory()"),
        *("information_schema.tables", "sqlite_master", "pragma_table_info('states')", "states"),
        *("duckdb_logs()", "which_secret('s3://x', 's3')", "test_all_types()", "range(5)"),
        *("sales.total", '"sales"."total"', "sales.log", "sales.none", "other.total", "total"),
    ]
)
_TABLES = st.one_of(
    _SELF,
    _FILES.map(lambda file: f"'{file}'"),
    st.builds(lambda of, file: f"{of}('{file}')", _READERS, _FILES),
    st.builds(lambda of, file: f"query('select * from {of}(''{file}'')')", _READERS, _FILES),
)
_VALUES = st.one_of(
    st.sampled_from(
        [
            *("*", "1", "null", "count(*)", "getenv('HOME')", "current_setting('temp_directory')"),
            *("current_setting('home_directory')", "version()", "current_user", "1/0", "'\0'"),
            *("getvariable('x')", "error('x')", "md5('x')", "repeat('x', 100)", "random()", "t.*"),
            *(
                "columns(*)",
                "unnest([1, 2])",
                "{'a': 1}",
                "map {1: 2}",
                "uuid()",
                "now()",
                "$1",
                "?",
            ),
            *(
                "'1'::bit",
                "interval 1 month",
                "'inf'::double",
                "170141183460469231731687303715884105727",
            ),
            *("parse_path('/a/b')", "json_serialize_sql('select 1')", "1::utinyint", "'a'::blob"),
            *("json_execute_serialized_sql(json_serialize_sql('select 1'))", "'24:00'::time"),
        ]
    ),
    st.builds(lambda of, file: f"(select * from {of}('{file}'))", _READERS, _FILES),
)
_SELECTS = st.recursive(
    st.builds(lambda value, table: f"select {value} from {table}", _VALUES, _TABLES),
    lambda inner: st.one_of(
        st.builds(lambda one: f"select * from ({one}) t", inner),
        st.builds(lambda one, other: f"{one} union all {other}", inner, inner),
        st.builds(lambda one, other: f"with t as ({one}) {other}", inner, inner),
        st.builds(lambda one: f"select * from sales.total where exists ({one})", inner),
        st.builds(lambda one: f"{one} /* ; */ -- attach 'x'", inner),
    ),
    max_leaves=3,
)
_STATEMENTS = st.sampled_from(
    [
        *("attach '{}/secret.duckdb' as x", "attach '{}/secret.duckdb'", "detach memory"),
        *(
            "copy states to '{}/out.csv'",
            "copy (select 1) to '{}/out.parquet'",
            "copy t from '{}/x'",
        ),
        *("export database '{}/out'", "import database '{}'", "install httpfs", "load httpfs"),
        *("set enable_external_access = true", "reset enable_external_access", "set threads = 9"),
        *(
            "set lock_configuration = false",
            "pragma enable_profiling",
            "pragma version",
            "pragma x",
        ),
        *("set profiling_output = '{}/out.json'", "set log_query_path = '{}/out.log'", "set x = 1"),
        *("create table t as select 1", "create view v as select 1", "create macro m() as 1"),
        *("create secret (type s3)", "create or replace view sales.total as select 1 as value"),
        *("insert into states values (1)", "delete from states", "drop view sales.total", "use x"),
        *(
            "call pragma_version()",
            "vacuum",
            "checkpoint",
            "begin",
            "commit",
            "prepare p as select 1",
        ),
        *(
            "execute p",
            "deallocate p",
            "set variable x = 1",
            "explain analyze select 1",
            "",
            ";",
            "--",
        ),
        *("describe states", "summarize states", "show tables", "show all tables", "from states"),
        *("values (1)", "table states", "pivot states on kind", "explain select * from states"),
    ]
)
QUERIES: st.SearchStrategy[str] = st.one_of(
    _SELECTS,
    _STATEMENTS,
    st.lists(_STATEMENTS | _SELECTS, min_size=2, max_size=3).map("; ".join),
    st.builds(lambda one: f"explain analyze {one}", _SELECTS),
    st.builds(lambda one: f"describe {one}", _SELECTS),
    st.text(max_size=20),
    st.builds(
        lambda one, at, some: one[:at] + some + one[at:],
        _SELECTS,
        st.integers(0, 60),
        st.text(max_size=3),
    ),
)
