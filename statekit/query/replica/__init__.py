"""Replicas: copies of operators that follow a checkpoint, and the views of their epochs.

May import `query/rows` and whatever that may import.
"""
