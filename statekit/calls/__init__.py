"""Calls of `async` functions: many open at a time, with timeouts and retries.

`event_loops` runs coroutines for code that is not async. `open_calls` keeps a bounded number of
calls open. `service_call` is one function with its options, `emitted` the outputs of an `async`
process function. May import top modules only.
"""
