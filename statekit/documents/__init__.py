"""Documents: jobs as JSON, written from a job and read back.

May import `job`, `kv`, `expressions` and whatever those may import.
"""
