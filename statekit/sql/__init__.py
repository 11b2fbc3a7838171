"""SQL over the states of one epoch, with DuckDB, in a process of its own.

`run` starts the process and ends it in time; `worker` is its main module; `pushdown` finds a key in
a query. A state is the table `operator.state`. May import `query` and whatever that may import.
"""
