"""Tables: the rows of a state as Arrow columns, as JSON and as files, and the ranking of its keys.

May import `query/rows`, `query/encoded` and whatever that may import.
"""
