"""Nexmark: persons, auctions and bids, and queries 3, 4, 5, 7, 8, 9, 11, 18 and 19 over them.

`events` makes the events, `queries` names the jobs, `sql` asks the same of a database, which says
what is right, and `on_spark` runs a job beside the same query in Spark's own streaming SQL.
`on_flink` runs it beside Flink SQL (`flink_sql`), over files that both read (`streams`).
"""
