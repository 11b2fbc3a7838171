"""Durable files of a checkpoint: manifests, change files, the commit, and what refers to what.

`repository` is a checkpoint on a `store`; `manifest` says what an epoch consists of, `restore_plan` what
a restore of some key groups reads. `gc` deletes what nothing refers to.
Imports `backend`, `codec` and top-level modules.
"""
