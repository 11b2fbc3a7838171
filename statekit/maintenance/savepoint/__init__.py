"""Savepoints: the state of a job as Parquet tables, written and restored."""
