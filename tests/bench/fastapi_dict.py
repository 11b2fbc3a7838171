"""What a user would write: a FastAPI handler over a dict."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException

from tests.bench.served_state import KEYS

app = FastAPI()
VALUES = {str(key): {"number": key, "text": f"text {key}"} for key in range(KEYS)}


@app.get("/store/store/value/{key}")
async def read(key: str) -> dict[str, Any]:
    value = VALUES.get(key)
    if value is None:
        raise HTTPException(404)
    return {"value": value, "epoch": 1}
