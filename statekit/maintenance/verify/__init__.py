"""Checks of every file and row of a checkpoint, and the repair of what can be repaired."""
