"""`check_sink`: a job that is killed while it writes to a sink, and what is left in the sink.

May import `testing` and whatever that may import.
"""
