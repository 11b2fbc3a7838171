"""Oracles of statekit itself: plain Python for windows, aggregates and stores, other readers, and
other hosts, as properties of `check` that find faults of statekit and none of a user's function.
"""
