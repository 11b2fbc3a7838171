"""`CallModel`: the calls of a service, one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statekit.calls.event_loops import VirtualTimeLoop, with_event_loop
from statekit.calls.service_call import ServiceCall
from statekit.errors import CALL_FAILURES, is_of_call
from statekit.functions.process import Process


class CallModel:
    """Model of `Stream.map_async`: one call at a time, and one record per call.

    Parameters:
        process: the operator that calls a service.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self._call: ServiceCall = process.traits.made_of

    def run(self, records: Sequence[Any]) -> list[Any]:
        """Return the outputs for some records. A record for which all attempts fail has none."""
        with with_event_loop(VirtualTimeLoop()):
            return [output for record in records for output in self._outputs(record)]

    def _outputs(self, record: Any) -> list[Any]:
        try:
            return self._call.outputs_of_record(record)
        except CALL_FAILURES as error:
            if not is_of_call(error):
                raise
            return []
