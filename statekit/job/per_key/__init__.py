"""Operators of `Stream` that keep a few rows per key: `distinct`, `aggregate`, `count`, `last`,
`first` and `top`.

All of them take columns of many keys at a time, and call no Python function per record:

- `distinct` emits the first record of each value of some fields.
- `kept_aggregates` makes states of aggregates. `emission` has the folds that add records to these
  states and emit results, and `aggregation` the operator of both.
- `ranked` emits records, or their places, instead of results of aggregates.

May import `job/windows` and whatever that may import; the folder above imports it.
"""
