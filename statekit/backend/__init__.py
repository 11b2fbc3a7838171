"""Rows of one shard: the mutations that change them, and where rows are kept.

`interface` has the `Backend` protocol and its in-memory implementation, `rocksdb` the one on disk.
A `mutation` is the only thing that changes rows; `change_file` stores mutations.
May import `records`, `codec` and top-level modules.
"""
