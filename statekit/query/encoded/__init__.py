"""Arrow columns as stored bytes: keys and values of many rows, without a Python object for each.

May import `records` and whatever that may import.
"""
