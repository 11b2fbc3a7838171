"""The input of shards, kept so that an epoch can be run again in a test.

A checkpoint has the states and no records. `Recorder` says what is kept and where, `recording` is
one shard's part of it, and `kept_recordings` removes what is too much. May import `functions` and
whatever that may import.
"""
