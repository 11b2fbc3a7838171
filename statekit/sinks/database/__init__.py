"""Tables of PostgreSQL: their columns, staging tables and log, for its sink.

May import `sinks/protocol` and whatever that may import.
"""
