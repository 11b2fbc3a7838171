"""Tables of lakes: their columns, data files and commits, for the sinks of Delta Lake and Iceberg.

May import `sinks/protocol` and whatever that may import.
"""
