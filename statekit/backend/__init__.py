"""Rows of one shard: the backends that store them, and the mutations that change them.

`interface` has the `Backend` protocol and its in-memory implementation, `rocksdb` the one on disk.
A `mutation` is the only thing that changes rows; `change_file` stores mutations.
May import `records`, `codec` and top-level modules.
"""
