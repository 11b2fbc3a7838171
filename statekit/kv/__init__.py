"""The key-value store on streams: `KVStore`, whose operations are streams.

A store is one operator. `store` declares operations, `requests` creates the records that reach the
operator, `layouts` store the values of a key, `operations` apply requests to them, and `multi_get`
joins the answers for several keys. It uses only the public names of `statekit`, which a test
enforces. May import `job` and whatever that may import.
"""
