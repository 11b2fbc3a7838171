"""Operations on a complete checkpoint while no job runs on it: migrate, rescale, rewrite.

`savepoint`, `diff`, `rescale` and `verify` have folders of their own. May import `query`, `job` and
whatever those may import.
"""
