"""Process functions: what a signature declares.

`process` is the decorator, `signature` reads the parameters, `context` is what a function sees of
its epoch. Imports `state`, `records` and what those may import.
"""
