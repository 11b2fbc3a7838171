"""Comparison of two checkpoints, epochs or savepoints, row by row.

May import `maintenance`, `maintenance/savepoint` and whatever those may import.
"""
