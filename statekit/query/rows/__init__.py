"""Rows of an epoch by their keys: `EpochReader` opens a checkpoint, `CheckpointReader` an epoch.

May import `job`, `checkpoint/leases` and whatever those may import.
"""
