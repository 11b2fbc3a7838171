"""Offline transform: a new checkpoint from the rows of another, for a job with other keys or other
operators.

May import `maintenance/verify` and whatever that may import.
"""
