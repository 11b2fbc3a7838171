"""Windows and aggregates, implemented as process functions.

From what a user declares to what a shard does:

- `sliding`, `calendar_windows`, `sessions` and `count_windows` have the kinds of windows, each with
  its rows and columns: `window_kind` says what a kind is. `calendar_grid` computes the boundaries
  of calendar windows with the clocks of `zone_clock`. `field_aggregates` has the aggregates.
  What an aggregate keeps of records of one type is its `accumulation`.
- `window_operator` makes the operator of windows from their `window_options`, and `per_key` beside
  this folder that of aggregates by key. Both are described as an `AggregatedResult`, for models.
- `window_values` joins the aggregates of a window into the value of one row. `elements` has the
  elements of those that collect.
- `open_windows` says what the windows of a key are as rows, with their timers, and `key_windows`
  has the functions that take the records of one key. `window_columns` keeps and fires the windows
  of many keys at a time, without timers.

May import `functions` and whatever that may import; the folder above imports it.
"""
