"""The protocol of sinks: `Sink`, of every runtime, and `FrameSink`, of Spark.

May import what `sinks` may import, except sinks.
"""
