"""Connections to systems outside, each shared by a source and a sink.

May import `records` and whatever that may import.
"""
