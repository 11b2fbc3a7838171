"""`check_sink`: kills a job that writes to a sink, and compares the records in the sink.

May import `testing` and whatever that may import.
"""
