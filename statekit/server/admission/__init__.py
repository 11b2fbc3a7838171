"""Admission: who may ask, how many requests run or wait at a time, and how long one takes.

May import `server/answers` and whatever that may import.
"""
