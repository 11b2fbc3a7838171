"""The server: committed state over HTTP.

`app` has the routes, `serve` runs them. Each served checkpoint has a replica, and each answer is of
one of its epochs.

FastAPI and uvicorn are imported here alone. May import `sql`, `metrics` and whatever those may
import.
"""
