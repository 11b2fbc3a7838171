"""Keys with their key groups, as Python values and as Spark SQL, for every test that hashes."""

from __future__ import annotations

import datetime as dt
from typing import Any

GROUPS = 128

# (key in Python, the key's columns in Spark SQL, key group of 128)
VECTORS: list[tuple[Any, str, int]] = [
    (0, "cast(0 as bigint)", 108),
    (1, "cast(1 as bigint)", 50),
    (-1, "cast(-1 as bigint)", 82),
    (2**63 - 1, "cast(9223372036854775807 as bigint)", 6),
    ("", "''", 4),
    ("hello", "'hello'", 50),
    ("naïve ☃", "'naïve ☃'", 46),
    (b"\x00\xff", "X'00FF'", 34),
    (True, "true", 41),
    (dt.date(2013, 1, 1), "date'2013-01-01'", 105),
    (dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC), "timestamp'2013-01-01 05:15:00 UTC'", 49),
    ("N14228", "'N14228'", 13),
    (("UA", 1545), "'UA', cast(1545 as bigint)", 26),
    (("UA", None), "'UA', cast(null as bigint)", 23),
    (None, "cast(null as string)", 42),
]
