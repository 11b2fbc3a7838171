"""Garbage collection: which files of a checkpoint are unreferenced, and their deletion.

Imports `checkpoint` and whatever that may import.
"""
