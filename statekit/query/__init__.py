"""Reading state from outside of a job: change feed and replica.

May import everything up to `job`. Nothing here writes to a checkpoint, except the leases of
readers.
"""
