"""A program for each system: it reads events, keeps state durably, and says what came out.

They run in other environments, so but for statekit's own none imports more than its system.
"""
