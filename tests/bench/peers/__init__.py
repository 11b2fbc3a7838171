"""Other systems with state, each in a virtual environment of its own, beside one shard of ours.

`environments` makes the environments, `inputs` the events, `jobs` has a program for each system,
`processes` runs one and counts what it took, and `versus` lets two take turns. What cannot be
installed, or fails, is a row that says why.
"""
