"""Garbage collection: which files of a checkpoint are unreferenced, and their deletion.

May import `checkpoint` and whatever that may import.
"""
