"""The job as data: sources, streams and operators, and the check that they fit a checkpoint.

A user builds a `job`. `plan` is its data, `chaining` finds operators that share one shuffle,
`compatibility` and `state_succession` compare a job with a checkpoint. May import `job/windows`,
`job/per_key`, `job/joins`, `sources`, `sinks/protocol`, `recording`, `working_copy`,
`checkpoint/leases` and whatever those may import.
"""
