"""Savepoints: the state of a job as Parquet tables, written and restored.

May import `maintenance` and whatever that may import.
"""
