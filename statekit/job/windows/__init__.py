"""Windows and built-in aggregates, implemented as process functions.

May import `functions` and whatever that may import; `stream` in the folder above imports it.
"""
