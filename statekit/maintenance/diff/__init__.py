"""Comparison of two checkpoints, epochs or savepoints, row by row."""
