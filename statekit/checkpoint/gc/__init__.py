"""Garbage collection: find the unreferenced files of a checkpoint, and delete them.

May import `checkpoint/leases` and whatever that may import.
"""
