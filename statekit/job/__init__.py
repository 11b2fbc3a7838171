"""The job as data: sources, streams, operators, and how they fit a checkpoint.

`job` is what a user builds, `plan` what runs, `chaining` the operators that share one shuffle,
`compatibility` and `state_succession` compare a job with what a checkpoint contains.
Imports `functions`, `state`, `records`, `checkpoint` and what those may import.
"""
