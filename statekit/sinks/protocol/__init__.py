"""The protocol of sinks: `Sink`, of every runtime, and `FrameSink`, of Spark.

May import `records`, `checkpoint`, `connectors` and whatever those may import.
"""
