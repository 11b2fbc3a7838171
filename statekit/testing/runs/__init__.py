"""Runs of a history: with models, in other processes, on Spark, and the comparison of two runs.

May import `testing` and whatever that may import.
"""
