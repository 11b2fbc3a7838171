"""Spark data sources: states and changes of checkpoints as frames.

`register` adds them to a session, `state_source` reads states, `changes_source` changes. May import
`spark` and whatever that may import.
"""
