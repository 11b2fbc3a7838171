"""Checks of functions and jobs, and the search for the smallest input that fails.

May import `testing/oracles` and whatever that may import.
"""
