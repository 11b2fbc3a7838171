"""Check a job before it runs: its types, functions, checkpoint, sources and sinks.

`job_check` has all findings, and each other module those of one part. Nothing of the job, its
checkpoint or its targets changes. May import everything.
"""
