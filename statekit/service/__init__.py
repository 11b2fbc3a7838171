"""The service: jobs that were submitted as documents, and the processes that run them.

`registry` stores the jobs and what users want of them. `leadership` chooses one server, whose
`supervisor` starts and stops processes until they agree with the registry. May import `documents`
and whatever that may import.
"""
