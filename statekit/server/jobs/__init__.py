"""Served jobs: the epochs of each checkpoint, and the work of requests that read many rows.

May import `server/admission`, `sql`, `metrics`, `mirrors`, `service` and whatever those may import.
"""
