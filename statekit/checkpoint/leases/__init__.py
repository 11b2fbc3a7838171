"""Leases of readers: the lease of a running reader, and the files of all leases.

May import `checkpoint` and whatever that may import.
"""
