"""Expressions over the fields of a record: one small language, as SQL text or as Python objects.

`tree` has the nodes and their SQL text, `expression` builds them in Python, `sql_text` parses them.
`typing_rules` checks a tree against a record class. `python_code` and `arrow_kernels` compute it
for records and for record batches; `compiled` has all of it for one record class. Columns of Spark
are made in `spark/frames`. May import `codec`, `records` and top-level modules.
"""
