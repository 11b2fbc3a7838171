"""Reading state from outside of a job: `reader`, tables, change feed and replica.

Nothing here writes to a checkpoint, except the leases of readers. May import `job` and whatever
that may import.
"""
