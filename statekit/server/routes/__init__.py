"""Routes: the addresses of the JSON API, each declared once, and the document of them.

May import `server/jobs`, `service` and whatever those may import.
"""
