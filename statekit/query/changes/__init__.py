"""Changes of a state, epoch by epoch: as rows for `statekit.feed`, and as columns.

May import `query/replica`, `query/tables` and whatever these may import.
"""
