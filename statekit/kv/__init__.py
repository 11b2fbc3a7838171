"""The key-value store on streams: `KVStore`, whose operations are streams.

A store is one operator. `store` declares operations, `requests` makes the records that reach the
operator, `layouts` keep the values of a key, `operations` say what each request does, and
`multi_get` puts answers about several keys together. It is written against the public names of
`statekit` alone, which a test enforces. May import `job` and whatever that may import.
"""
