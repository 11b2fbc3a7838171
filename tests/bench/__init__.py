"""Benchmarks: every number is a ratio against a peer or a bound measured in the same run.

`make bench` runs all of them; `python -m tests.bench NAME …` some. Nothing here is a test: shared
machines are noisy, so runs are paired (A, B, A, B, …; on Spark A, B, B, A, …) and medians are
reported.
"""
