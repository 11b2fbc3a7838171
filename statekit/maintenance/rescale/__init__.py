"""A change of parallelism while no job runs: the plan, and the new layout after verification.

May import `maintenance/verify` and whatever that may import.
"""
