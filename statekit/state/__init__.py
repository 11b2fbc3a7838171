"""State types: the handles for process functions, and the conversion of calls to mutations.

`base` has what all state types share, `key_scope` the access of one key to rows, `timers` and `ttl`
the state that time changes. May import `backend`, `checkpoint`, `codec` and top-level modules.
"""
