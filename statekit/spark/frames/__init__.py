"""The DataFrames of an epoch: inputs, what operators read and emit, and where their shards run.

May import `spark/worker` and whatever that may import.
"""
