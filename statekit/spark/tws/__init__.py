"""Processors for Spark's own `transformWithState`, executed on statekit's state.

The rest of `spark` does not know this folder. May import `spark` and whatever that may import.
"""
