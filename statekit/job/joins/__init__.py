"""Joins of two streams: their declaration, the operator of each kind, and the matching of rows in
columns.

It may import what `statekit.job` may.
"""
