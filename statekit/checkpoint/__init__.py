"""Durable files of a checkpoint: manifests, change files, the commit, and what refers to what.

`repository` is a checkpoint on a `store`, and `paths` the names of its files. `manifest` says what
an epoch consists of, `restore_plan` what a restore reads. `gc` deletes unreferenced files.
Imports `backend`, `codec` and top-level modules.
"""
