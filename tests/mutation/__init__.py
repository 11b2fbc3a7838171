"""Faults that are put into statekit on purpose, to see whether checks find them.

`mutants` are the faults, `subjects` the functions and jobs that are checked, `__main__` runs them.
"""
