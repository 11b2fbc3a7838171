"""Connections to systems outside, each shared by a source and a sink.

May import `records` and what it may import.
"""
