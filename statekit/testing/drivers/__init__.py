"""Harnesses and their parts: they run epochs of a job in this process or in others.

May import `runtime` and whatever that may import.
"""
