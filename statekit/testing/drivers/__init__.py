"""Harnesses, and what they are made of: they run epochs of a job in this process or in others.

May import `runtime` and whatever that may import.
"""
