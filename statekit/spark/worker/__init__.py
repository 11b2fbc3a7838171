"""Shards in Spark's Python workers: their rows, their commit records and their errors.

`shards` runs them. May import `runtime` and whatever that may import.
"""
