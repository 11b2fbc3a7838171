"""Checks of every file and row of a checkpoint, and the repair of what can be repaired.

May import `maintenance`, `maintenance/savepoint` and whatever those may import.
"""
