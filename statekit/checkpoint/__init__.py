"""Durable files of a checkpoint: manifests, change files, the commit, and file references.

`repository` is a checkpoint on a `store`, and `paths` the names of its files. `manifest` describes
an epoch, `restore_plan` the files that a restore reads. `gc` deletes unreferenced files. May
import `backend`, `codec` and top-level modules.
"""
