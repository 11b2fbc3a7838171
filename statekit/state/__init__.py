"""State types: the handles for process functions, and the conversion of calls to mutations.

`base` has what all state types share, `key_scope` the access of one key to rows, `timers` and `ttl`
the state that time changes.

Functions of statekit that handle many keys at a time, such as windows, use the bulk interface. It
works on stored rows, past the cache, and has no key scope: `read_rows`, `values_of_rows`,
`replace_rows` and `remove_rows` of cached states, `add_all` of states that aggregate and of maps,
`stored_between`, `rows_of_groups` and `subkey` of maps, and `wakes_at` of timers.

May import `backend`, `checkpoint`, `codec` and top-level modules.
"""
