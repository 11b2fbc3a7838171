"""Mirrors: tables that are kept equal to states of a checkpoint, epoch by epoch.

A mirror reads changes as `statekit.feed` does, and writes them to the sinks of jobs. May import
`query`, `sinks` and whatever those may import.
"""
