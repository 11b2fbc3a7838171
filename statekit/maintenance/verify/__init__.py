"""Verification and repair: checks of every file and row of a checkpoint, and the repair of its last
epoch.

May import `maintenance`, `maintenance/savepoint` and whatever those may import.
"""
