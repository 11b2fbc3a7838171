"""Windows and built-in aggregates, which are process functions like the user's own.

May import `functions` and whatever that may import; `stream` in the folder above imports it.
"""
