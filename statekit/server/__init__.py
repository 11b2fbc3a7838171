"""The server: committed state over HTTP.

`app` assembles the application, `serve` runs it. Each served checkpoint has a replica, and each
answer is of one of its epochs.

Starlette and uvicorn are imported only here. May import `server/dashboard` and whatever that may
import.
"""
