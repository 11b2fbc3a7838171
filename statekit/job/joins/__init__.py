"""Joins of two streams: their declaration, the operator of each kind, and the matching of rows in
columns.

`join_declaration` checks the options of a join. `join_operator` makes the operator of two streams,
`lookup_operator` that of a stream and a table, `table_join_operator` that of two tables.
`stream_join`, `lookup` and `table_join` are what they do; `moves` and `net_changes` are the
operators before and after a join of tables whose foreign keys change. `matching` and `sweep` find
matches, `side_rows` keeps the rows of a side, `join_points` says where they are in time, and
`join_results` creates results. May import `job/windows` and whatever that may import; the folder
above imports it.
"""
