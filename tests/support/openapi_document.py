"""The OpenAPI document of a server, as what its answers are checked against."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema

METHODS = ("get", "post")


class OpenApi:
    """A document.

    Parameters:
        document: as `/openapi.json` gives it.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}

    @classmethod
    def of(cls, address: str, **options: Any) -> OpenApi:
        answer = httpx.get(f"{address}/openapi.json", timeout=60, **options)
        assert answer.status_code == 200, answer.text
        return cls(answer.json())

    @property
    def paths(self) -> dict[str, Any]:
        paths: dict[str, Any] = self.document["paths"]
        return paths

    def resolved(self, part: Any) -> Any:
        """A part, or what it refers to."""
        while "$ref" in part:
            found: Any = self.document
            for name in part["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            part = found
        return part

    def validator(self, schema: dict[str, Any]) -> Any:
        """What checks JSON against a schema of the document."""
        cls = jsonschema.Draft202012Validator
        complete = {"components": self.document["components"], "allOf": [schema]}
        return cls(complete, format_checker=cls.FORMAT_CHECKER)

    def check(self, answer: httpx.Response, path: str) -> None:
        """Check that an answer is what the document says of its address and status.

        Parameters:
            path: as in the document.
        """
        operation = self.paths[path][answer.request.method.lower()]
        described = operation["responses"].get(str(answer.status_code))
        assert described is not None, (answer.request.url, answer.status_code, answer.text)
        described = self.resolved(described)
        for name in described.get("headers", {}):
            if name != "Retry-After":
                assert name in answer.headers, (answer.request.url, name)
        if answer.status_code == 304:
            return
        media_type = answer.headers["content-type"]
        content = described["content"].get(media_type) or described["content"].get(
            media_type.partition(";")[0]
        )
        assert content is not None, (answer.request.url, media_type)
        if media_type in ("application/json", "application/problem+json"):
            self.validator(content["schema"]).validate(answer.json())

    def check_references(self) -> None:
        """Check that all that is referred to is there, and that all schemas are schemas."""
        for schema in self.document["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)
        waiting: list[Any] = [self.document]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if isinstance(part.get("$ref"), str):
                    self.resolved(part)
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
