"""The files of `examples/deploy` are valid, and the commands and probes in them work.

Nothing here needs Docker or a cluster: images are checked by a linter, manifests by the schemas of
Kubernetes and Compose, and commands of images run as processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from tests.support.kafka_broker import KafkaBroker
from tests.support.places import DOCS, ROOT
from tests.support.ports import free_port
from tests.support.postgres import PostgresSchema
from tests.support.spark_clusters import Cluster
from tests.support.timeouts import PATIENCE_S

DEPLOY = ROOT / "examples" / "deploy"
IMAGES = sorted(DEPLOY.glob("*.Dockerfile"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
BIN = Path(sys.executable).parent
ORDERS = [("north", 250), ("south", 100), ("north", 50)]


def documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text()))


def instructions(image: Path) -> dict[str, str]:
    """The last value of each instruction of a Dockerfile."""
    text = re.sub(r"\\\n\s*", "", image.read_text())
    return dict(line.split(" ", 1) for line in text.splitlines() if re.match("[A-Z]+ ", line))


def command_of(image: Path, *arguments: str) -> list[str]:
    """The command that a container of an image runs."""
    found = instructions(image)
    return [*json.loads(found["ENTRYPOINT"]), *(arguments or json.loads(found["CMD"]))]


def container_of(manifest: str) -> dict[str, Any]:
    """The container of a manifest that has one."""
    pods = [
        each["spec"]["template"]["spec"]
        for each in documents(DEPLOY / "kubernetes" / manifest)
        if "template" in each.get("spec", {})
    ]
    (container,) = pods[0]["containers"]
    return dict(container)


def probes_of(container: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """The path and the port of each probe of a container."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    gets = {name: of["httpGet"] for name, of in container.items() if name.endswith("Probe")}
    return {name: (get["path"], ports[get["port"]]) for name, get in gets.items()}


# ------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_a_linter_finds_nothing_in_the_images(image: Path) -> None:
    done = subprocess.run([BIN / "hadolint", image], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_file_fits_its_schema_and_names_files_that_exist() -> None:
    file = DEPLOY / "compose.yaml"
    words = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (compose,) = documents(file)
    builds = [each["build"] for each in compose["services"].values() if "build" in each]
    assert len(builds) == 2
    assert all((DEPLOY / build["dockerfile"]).exists() for build in builds)
    named = {
        each.partition(":")[0]
        for of in compose["services"].values()
        for each in of.get("volumes", ())
    }
    assert named == compose["volumes"].keys()


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_manifests_fit_the_api_of_kubernetes(manifest: Path) -> None:
    for each in documents(manifest):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_manifests_name_one_writer_and_the_commands_of_the_images() -> None:
    for name in ("job.yaml", "spark.yaml"):
        (deployment,) = [
            each for each in documents(DEPLOY / "kubernetes" / name) if each["kind"] == "Deployment"
        ]
        assert deployment["spec"]["replicas"] == 1
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    for name in ("job", "server", "jobs"):
        command = command_of(DEPLOY / f"{name}.Dockerfile", *container_of(f"{name}.yaml")["args"])
        help = subprocess.run(  # an unknown option would be an error before help is shown
            [BIN / command[0], command[1], "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert all(word in help for word in command if re.fullmatch("--[a-z-]+", word))


def test_the_pages_name_files_that_exist() -> None:
    for page in sorted((DOCS / "operate").glob("deploy-*.md")):
        for name in re.findall(r"examples/deploy/([\w./]+\w)", page.read_text()):
            assert (DEPLOY / name).exists(), f"{page.name} names {name}"


# --------------------------------------------------------------------- the commands of the images


@contextlib.contextmanager
def container(image: str, home: Path, port: int, **environment: str) -> Iterator[Any]:
    """Run the command of an image as a process, with directories and a port of its own."""
    command = command_of(DEPLOY / image)
    if not image.startswith("job."):
        command += ["--port", "8321"]
    command = [re.sub("^/(?=copies|state|work|tokens)", f"{home}/", word) for word in command]
    command = [word.replace("=/state", f"={home}/state") for word in command]
    command = [word.replace("0.0.0.0", "127.0.0.1") for word in command]
    command = [re.sub("(?<!/)(9464|8321)$", str(port), word) for word in command]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=DEPLOY,
            env={**checkout(), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(probe: str, port: int, log: Path, process: Any) -> None:
    """Probe until the answer is good, as Kubernetes does."""
    end = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}{probe}", timeout=5).status_code == 200:
                return
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def end(process: Any, manifest: str) -> None:
    """End a process as Kubernetes does: SIGTERM, and SIGKILL after the grace period."""
    spec = next(
        each["spec"]["template"]["spec"]
        for each in documents(DEPLOY / "kubernetes" / manifest)
        if "template" in each.get("spec", {})
    )
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=spec["terminationGracePeriodSeconds"])
    assert code in (0, -signal.SIGTERM)  # the server ends by the signal, after its requests


def send(kafka: KafkaBroker, topic: str) -> None:
    for shop, cents in ORDERS:  # one by one, as the broker gives the begin of a batch as the end
        kafka.produce(topic, [json.dumps({"shop": shop, "cents": cents})])


def totals(postgres: PostgresSchema) -> set[tuple[str, int, int]]:
    if "totals" not in postgres.tables():
        return set()
    return set(postgres.rows("SELECT shop, cents, orders FROM totals"))


def wait_for_totals(postgres: PostgresSchema, wanted: set[tuple[str, int, int]], log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while totals(postgres) != wanted:
        assert time.monotonic() < end, f"{totals(postgres)}: {log.read_text()}"
        time.sleep(0.1)


def test_the_commands_of_the_images_answer_their_probes_and_end_in_the_grace_period(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    names = {"KAFKA_SERVERS": kafka.servers, "KAFKA_TOPIC": topic, "POSTGRES_URL": postgres.url}
    (tmp_path / "state").mkdir()
    log = tmp_path / "log"
    (compose,) = documents(DEPLOY / "compose.yaml")
    for start in (1, 2):  # the second start continues from the checkpoint
        port = free_port()
        send(kafka, topic)
        with container("job.Dockerfile", tmp_path, port, **names) as job:
            probes = probes_of(container_of("job.yaml"))
            assert {own for _, own in probes.values()} == {9464}
            wait_for(probes["startupProbe"][0], port, log, job)
            wanted = {("north", 300 * start, 2 * start), ("south", 100 * start, start)}
            wait_for_totals(postgres, wanted, log)
            for path, _ in probes.values():
                wait_for(path, port, log, job)
            check(compose["services"]["job"]["healthcheck"], 9464, port)
            end(job, "job.yaml")
    port = free_port()
    with container("server.Dockerfile", tmp_path, port) as server:
        probes = probes_of(container_of("server.yaml"))
        for path, _ in probes.values():
            wait_for(path, port, log, server)
        check(compose["services"]["server"]["healthcheck"], 8321, port)
        answer = httpx.get(f"http://127.0.0.1:{port}/orders/total/cents/north").json()
        assert answer["value"] == 600
        end(server, "server.yaml")


def test_the_server_of_jobs_answers_its_probes_and_runs_what_is_submitted(tmp_path: Path) -> None:
    for name in ("state", "tokens"):
        (tmp_path / name).mkdir()
    words = ["token", "deploy", "--manage", "*", "--tokens", str(tmp_path / "tokens/tokens.json")]
    made = subprocess.run(
        [BIN / "statekit", *words], env=checkout(), capture_output=True, text=True, check=True
    )
    headers = {"Authorization": f"Bearer {made.stdout.split()[0]}"}
    port = free_port()
    with container("jobs.Dockerfile", tmp_path, port) as server:
        for path, _ in probes_of(container_of("jobs.yaml")).values():
            wait_for(path, port, tmp_path / "log", server)
        jobs = httpx.get(f"http://127.0.0.1:{port}/submitted", headers=headers)
        assert jobs.status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/submitted").status_code == 401
        end(server, "jobs.yaml")


def checkout() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def check(healthcheck: dict[str, Any], of_image: int, port: int) -> None:
    """Run a health check of the Compose file, which must succeed, and fail without the server."""
    kind, *words = healthcheck["test"]
    assert kind == "CMD"
    for asked, code in ((port, 0), (free_port(), 1)):
        own = [word.replace(str(of_image), str(asked)) for word in words]
        own[0] = str(BIN / own[0])
        assert subprocess.run(own, capture_output=True, check=False).returncode == code


# ------------------------------------------------------------------- a fresh Python, spark-submit


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the images install, by the command in them. Return its folder `bin`."""
    home = tmp_path_factory.mktemp("image")
    wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*wheels, str(home), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(home / "python")], check=True)
    words = shlex.split(instructions(DEPLOY / "job.Dockerfile")["RUN"].split(" && ")[0])
    assert words[:2] == ["pip", "install"]
    pip = [str(home / "python" / "bin" / "pip"), *words[1:], "--find-links", str(home)]
    subprocess.run([*pip, "--quiet", "venv-pack", "setuptools<81"], cwd=DEPLOY, check=True)
    return home / "python" / "bin"


def environment(kafka: KafkaBroker, topic: str, postgres: PostgresSchema) -> dict[str, str]:
    """The environment of a container: nothing of this checkout is found by name."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return {
        **kept,
        "KAFKA_SERVERS": kafka.servers,
        "KAFKA_TOPIC": topic,
        "POSTGRES_URL": postgres.url,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.slow
def test_the_job_runs_with_what_its_image_installs(
    fresh: Path, tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    send(kafka, topic)
    words = ["run", "orders:job", "--checkpoint", str(tmp_path / "state"), "--metrics", "0"]
    done = subprocess.run(
        [fresh / "statekit", *words],
        cwd=DEPLOY,
        env=environment(kafka, topic, postgres),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert totals(postgres) == {("north", 300, 2), ("south", 100, 1)}


def submit(
    words: list[str], kafka: KafkaBroker, topic: str, postgres: PostgresSchema, python: str
) -> None:
    done = subprocess.run(
        [BIN / "spark-submit", *words],
        cwd=DEPLOY,
        env={
            **environment(kafka, topic, postgres),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_spark_submit_runs_the_job_with_its_module(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    for start in (1, 2):
        send(kafka, topic)
        words = ["--master", "local[2]", "--py-files", "orders.py", "submit.py"]
        submit([*words, str(tmp_path / "state"), "--once"], kafka, topic, postgres, sys.executable)
        assert totals(postgres) == {
            ("north", 300 * start, 2 * start),
            ("south", 100 * start, start),
        }


@pytest.mark.slow
def test_executors_run_the_job_with_a_python_that_spark_submit_sends_them(
    fresh: Path, tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    """Executors get the archive and the module, and nothing else of statekit."""
    kafka.create_topic(topic, 2)
    send(kafka, topic)
    archive = tmp_path / "environment.tar.gz"
    pack = f"{fresh}/venv-pack --quiet --prefix {fresh.parent} --output {archive}"
    subprocess.run([*pack.split(), "--compress-level", "0"], check=True)
    with tarfile.open(archive) as packed:
        assert any(name.endswith("statekit/__init__.py") for name in packed.getnames())
    with Cluster(tmp_path / "cluster") as cluster:
        words = ["--master", cluster.url, "--archives", f"{archive}#environment"]
        words += ["--executor-memory", "512m", "--conf", "spark.executorEnv.PYTHONPATH="]
        words += ["--py-files", "orders.py", "submit.py", str(tmp_path / "state"), "--once"]
        submit(words, kafka, topic, postgres, "./environment/bin/python")
    assert totals(postgres) == {("north", 300, 2), ("south", 100, 1)}
