"""A real server on loopback, in a thread, and jobs whose state it serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx

import statekit as sk
from statekit.server.admission.options import ServerOptions
from statekit.server.serve import StateServer, bound_socket, uvicorn_config
from statekit.service.job_service import JobService


class Sale(NamedTuple):
    shop: str
    item: str
    cents: int


class Row(NamedTuple):
    """What a shop sold last."""

    item: str
    cents: int


@sk.process(key="shop")
def sales(
    sale: Sale,
    last: sk.ValueState[Row],
    items: sk.MapState[str, int],
    log: sk.ListState[int],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
) -> None:
    last.update(Row(sale.item, sale.cents))
    items[sale.item] = items.get(sale.item, 0) + sale.cents
    log.append(sale.cents)
    total.add(sale.cents)


def sales_job() -> sk.Job:
    job = sk.Job("sales")
    job.source("records", Sale).process(sales)
    return job


def sell(home: Path, records: list[Sale], epoch_size: int = 1, **options: Any) -> None:
    """Run the job over all records so far."""
    options |= {"checkpoint": home, "epoch_size": epoch_size, "drain": False}
    sales_job().run({"records": records}, **options)


@contextmanager
def server(checkpoints: Mapping[str, Any], **options: Any) -> Iterator[str]:
    """Serve checkpoints on a free port, and yield the address of the server.

    Parameters:
        options: of the server; also `service`, which runs submitted jobs.
    """
    service: JobService | None = options.pop("service", None)
    chosen = ServerOptions(**{"port": 0} | options)
    with bound_socket(chosen.host, chosen.port) as listening:
        places = {name: str(of) for name, of in checkpoints.items()}
        config = uvicorn_config(places, chosen, service)
        running = StateServer(config)
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            _wait(address, thread)
            yield address
        finally:
            running.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server did not end"


def open_requests(address: str) -> int:
    """Return how many requests the server is answering, besides this one."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    (found,) = (line for line in lines if line.startswith("statekit_open_requests "))
    return int(float(found.split()[1])) - 1


def _wait(address: str, thread: threading.Thread) -> None:
    while thread.is_alive():
        try:
            httpx.get(f"{address}/healthz")
        except httpx.TransportError:
            continue
        return
    raise AssertionError("the server did not start")
