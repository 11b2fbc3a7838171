"""Oracles of a run: models of operators in plain Python, and readers of its checkpoint.

May import `testing/runs` and whatever that may import.
"""
