"""Working copies: the local RocksDB copy of each shard, and the base snapshots taken from it.

`copies` opens a copy at an epoch, and `restore` creates one. `base_lifecycle` takes base snapshots
and `uploader` uploads them. May import `checkpoint`, `backend` and top-level modules.
"""
