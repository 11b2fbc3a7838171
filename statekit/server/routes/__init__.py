"""Routes: the addresses of the JSON API, each declared once, and the document of them.

May import `server/jobs` and whatever that may import.
"""
