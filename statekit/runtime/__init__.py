"""The runtime of an epoch: shards, tasks, the coordinator that commits, and runs in this process.

`task` calls the user's function, `shard` runs the task over a working copy, `coordinator` plans and
commits epochs, `local` runs a whole job without Spark. May import everything below it.
"""
