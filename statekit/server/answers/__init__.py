"""Answers: JSON with the facts of its epoch, problems, and conditional requests.

May import nothing of the server, and whatever `query/replica` may import.
"""
