"""Metrics: their names, the values of a run and of an epoch, and the endpoint of a job.

A job and the server have the same metrics, which `definitions` names once. `run_metrics` counts
what a run commits, `epoch_metrics` has the values of one epoch, `option` is `metrics=`. Only
`families` and `endpoint` import prometheus_client. May import `checkpoint/gc` and whatever that may
import.
"""
