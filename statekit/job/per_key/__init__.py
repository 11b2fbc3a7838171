"""Operators of `Stream` whose results are records of each key: `distinct`.

They take columns of many keys at a time, as aggregates do, and keep a row per key.

May import `job.windows` and whatever that may import; the folder above imports it.
"""
