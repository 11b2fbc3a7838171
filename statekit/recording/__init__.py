"""Recording: the input of shards, kept so that an epoch can be run again in a test.

A checkpoint has the states and no records. `Recorder` has the options, `recording` writes and reads
the records of one shard and removes the oldest epochs. May import `functions` and whatever that may
import.
"""
