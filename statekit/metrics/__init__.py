"""Metrics: their definitions, the values of a run and of an epoch, and the endpoint of a job.

`definitions` has the metrics of a job and of the server, some of which are the same. `run_metrics`
counts the commits of a run, `epoch_metrics` has the values of one epoch, and `option` is the option
`metrics=`. Only `families` and `endpoint` import prometheus_client. May import `checkpoint/gc` and
whatever that may import.
"""
