"""Instants as tests write them: seconds since 1970."""

from __future__ import annotations

import datetime as dt


def at(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def after(seconds: float) -> dt.timedelta:
    return dt.timedelta(seconds=seconds)
