"""Typed state for Python stream processing on Spark."""
