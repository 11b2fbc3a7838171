"""State types: the handles that process functions call, and how calls become mutations.

`base` has what all state types share, `key_scope` the access of one key to rows, `timers` and `ttl`
the state that time changes. May import `backend`, `checkpoint`, `codec` and top-level modules.
"""
