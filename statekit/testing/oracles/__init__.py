"""Models of operators in plain Python, and readers of a checkpoint: what a run is compared with.

May import `testing/runs` and whatever that may import.
"""
