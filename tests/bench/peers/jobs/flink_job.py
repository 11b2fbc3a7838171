"""PyFlink: a `KeyedProcessFunction` in thread mode, state in RocksDB, incremental checkpoints.

Arguments: the events, `count` or `entries`, a scratch directory, and the seconds between
checkpoints. Lines are read by Flink's own file source and taken apart in Python.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In thread mode Python is embedded into the JVM, where it does not find this environment by itself.
os.environ["PYTHONPATH"] = os.pathsep.join([sysconfig.get_paths()["purelib"], os.getcwd()])
if "JAVA_HOME" not in os.environ and (java := shutil.which("java")):
    os.environ["JAVA_HOME"] = str(Path(java).resolve().parents[1])

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor
from pyflink.java_gateway import get_gateway

from tests.bench.peers.jobs.handshake import bytes_in, done, ready


class Adding(KeyedProcessFunction):
    """Adds up what it emits, and leaves that in a file: it runs in the JVM.

    Parameters:
        told: the file.
    """

    def __init__(self, told: str) -> None:
        self.told = told
        self.check = 0

    def close(self) -> None:
        with open(self.told, "w") as file:
            file.write(str(self.check))


class Count(Adding):
    def open(self, runtime_context: RuntimeContext) -> None:
        held = ValueStateDescriptor("held", Types.TUPLE([Types.LONG(), Types.LONG()]))
        self.held = runtime_context.get_state(held)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count, total = self.held.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self.held.update((count, total))
        self.check += total
        yield value[0], count, total


class SetEntry(Adding):
    def open(self, runtime_context: RuntimeContext) -> None:
        held = MapStateDescriptor("held", Types.LONG(), Types.LONG())
        self.held = runtime_context.get_map_state(held)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, entry, added = value
        total = (self.held.get(entry) or 0) + added
        self.held.put(entry, total)
        self.check += total
        yield key, entry, total


def configuration(home: Path, every_s: str) -> Configuration:
    settings = {
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{home}/checkpoints",
        "execution.checkpointing.interval": f"{every_s} s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "taskmanager.memory.process.size": "2g",
        "taskmanager.memory.managed.size": "512m",
        "rest.port": "0",
    }
    made = Configuration()
    for name, value in settings.items():
        made.set_string(name, value)
    return made


def main(events: Path, workload: str, home: Path, every_s: str) -> None:
    environment = StreamExecutionEnvironment.get_execution_environment(configuration(home, every_s))
    environment.set_parallelism(1)
    lines = FileSource.for_record_stream_format(
        StreamFormat.text_line_format(), str(events / "events.csv")
    ).build()
    width = 3 if workload == "entries" else 2
    rows = environment.from_source(lines, WatermarkStrategy.no_watermarks(), "events").map(
        lambda line: tuple(map(int, line.split(","))), Types.TUPLE([Types.LONG()] * width)
    )
    told = home / "check"
    adding = (SetEntry if workload == "entries" else Count)(str(told))
    sums = rows.key_by(lambda row: row[0], key_type=Types.LONG()).process(
        adding, Types.TUPLE([Types.LONG()] * 3)
    )
    functions = get_gateway().jvm.org.apache.flink.streaming.api.functions
    sums.sink_to(Sink(functions.sink.v2.DiscardingSink()))
    ready()
    environment.execute("bench")
    done(check=int(told.read_text()), of="events", written=bytes_in(home / "checkpoints"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
