"""A route is declared once: its checks and its part of the document follow from the declaration."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from pydantic import BaseModel, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from statekit.server.answers.problems import Problem
from statekit.server.routes.call import RouteCall
from statekit.server.routes.openapi import Document
from statekit.server.routes.responses import JSON, answered
from statekit.server.routes.route_table import HttpRoute, RouteTable


class Wished(BaseModel, extra="forbid"):
    """The parameters of a route."""

    size: Annotated[int, Field(ge=1, description="In rows.")] = 10
    name: str | None = None


class Order(msgspec.Struct):
    """The body of a route."""

    count: int


class Receipt(TypedDict):
    """The answer of a route."""

    total: int


def declared() -> HttpRoute:
    table = RouteTable()
    answers = {"200": answered("The receipt.", {JSON: Receipt})}

    @table.post("/orders/{format:csv|arrow}", answers, problems=(413,))
    async def order(call: RouteCall, format: str, wished: Wished, body: Order) -> Response:
        """Place an order."""
        raise NotImplementedError

    (route,) = table.routes
    return route


def test_the_parameters_of_a_route_are_those_of_its_model() -> None:
    route = declared()
    assert (route.query, route.body, route.names) == (Wished, Order, {"format": "csv|arrow"})
    assert route.parameters(b"") == (Wished(),)
    assert route.parameters(b"size=3&name=null") == (Wished(size=3, name="null"),)
    for query, told in [
        (b"size=0", "size: Input should be greater than or equal to 1"),
        (b"sise=1", "there is no parameter 'sise' here: there are name, size"),
    ]:
        with pytest.raises(Problem, match=told) as refused:
            route.parameters(query)
        assert refused.value.status == 400


@pytest.mark.parametrize(
    ("path", "address", "found"),
    [
        ("/orders/{format:csv|arrow}", "orders/csv", ["csv"]),
        ("/orders/{format:csv|arrow}", "orders/json", None),
        ("/{a}/{b}.{format:csv|arrow}", "x/y.z.csv", ["x", "y.z", "csv"]),
        ("/{a}/{b}.{format:csv|arrow}", "x/.csv", None),
        ("/{a}/{rest:rest}", "x/y/z", ["x", "y/z"]),
        ("/{a}/{rest:rest}", "x/", ["x", ""]),
    ],
)
def test_a_path_has_texts_names_and_a_rest(path: str, address: str, found: list[str]) -> None:
    async def handler(call: RouteCall) -> Response:
        raise NotImplementedError

    assert HttpRoute("GET", path, handler, {}).arguments(address.split("/")) == found


def test_the_document_follows_from_the_declaration_of_a_route() -> None:
    table = RouteTable()
    table.routes.append(declared())
    document = Document(table).made({})
    operation = document["paths"]["/orders/{format}"]["post"]
    assert (operation["operationId"], operation["summary"]) == ("order", "Place an order.")
    assert operation["parameters"][0]["schema"] == {"enum": ["csv", "arrow"]}
    size = document["components"]["parameters"]["size"]
    assert size["schema"] == {"type": "integer", "minimum": 1, "default": 10}
    assert size["description"] == "In rows."
    assert document["components"]["parameters"]["name"]["schema"] == {"type": "string"}
    assert {"Order", "Receipt"} <= document["components"]["schemas"].keys()
    assert {"200", "413", "401", "500"} <= operation["responses"].keys()
