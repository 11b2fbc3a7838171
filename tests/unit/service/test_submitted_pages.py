"""Pages of submitted jobs, and their metrics: what they show, and whose forms they accept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from statekit.server.admission.token_file import add_token
from statekit.service.job_record import RunChoice, SubmittedJob
from statekit.service.registry import JobRegistry
from tests.support.submitted_jobs import document, order
from tests.support.waiting import until
from tests.unit.service.test_submitted_jobs import JobServer, job_server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """A server with jobs that are stopped, and names that need escapes."""
    home = tmp_path_factory.mktemp("pages")
    registry = JobRegistry.at(home / "registry")
    text = document(home)
    for number in range(100):
        name = f"job{number:03d}"
        registry.submit(name, text, RunChoice(checkpoint=str(home / "state" / name)))
        registry.change(name, SubmittedJob.stopped)
    with job_server(home) as own:
        yield own


def browser(server: JobServer, token: str | None = None) -> httpx.Client:
    """Return a client with the cookie of a user who has signed in."""
    port = httpx.URL(server.url).port
    cookie = f"statekit-token-{port}={quote(token or server.token, safe='')}"
    return httpx.Client(base_url=server.url, headers={"Cookie": cookie})


def form_of(page: str) -> str:
    found = re.search(r'name="form" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def test_a_page_of_100_jobs_is_small_and_shows_each(running: JobServer) -> None:
    with browser(running) as user:
        page = user.get("/-/submitted")
        assert page.status_code == 200
        assert len(page.content) < 100_000, len(page.content)
        sent = user.get("/-/submitted", headers={"Accept-Encoding": "gzip"})
        assert sent.num_bytes_downloaded < 20_000
        assert page.text.count('<span class="status wait">stopped</span>') == 100
        assert 'href="./submitted/job042"' in page.text
    assert httpx.get(f"{running.url}/-/submitted").status_code == 401


def test_forms_start_and_stop_a_job_and_show_what_is_wrong(running: JobServer) -> None:
    path = "/-/submitted/job001"
    with browser(running) as user:
        form = form_of(user.get(path).text)

        def send(action: str, value: str = "") -> httpx.Response:
            return user.post(
                path, data={"action": action, "value": value, "form": form, "from": "job"}
            )

        answer = send("rescale", "3")
        assert (answer.status_code, answer.headers["location"]) == (303, "./job001")
        assert "<dt>parallelism</dt><dd>3</dd>" in user.get(path).text
        assert send("rescale", "many").status_code == 400
        assert send("rescale", "0").status_code == 400
        assert send("savepoint", "../a").status_code == 400
        assert send("delete").status_code == 400
        assert send("start").status_code == 303
        with running.client() as client:
            until(lambda: client.submitted_job("job001")["process"] is not None)
            order(running.home, "a", ("<b>ada</b>", 1))
            until(lambda: client.submitted_job("job001")["epoch"] == 0)
            page = user.get(path).text
            assert '<p class="status good line" role="status" id="status">running</p>' in page
            assert "&#34;epoch&#34;: 0" in page
            text = httpx.get(
                f"{running.url}/metrics",
                headers={"Authorization": f"Bearer {metrics_token(running)}"},
            ).text
            assert 'statekit_submitted_running{job="job001"} 1.0' in text
            assert 'statekit_submitted_late{job="job001"} 0.0' in text
            assert 'statekit_submitted_wanted{job="job000"} 0.0' in text
            assert 'statekit_submitted_last_epoch_timestamp_seconds{job="job001"}' in text
            assert send("stop").status_code == 303
            until(lambda: client.submitted_job("job001")["status"] == "stopped")
            wrong = send("delete", "job002")
            assert (wrong.status_code, "type its name, job001" in wrong.text) == (400, True)
            deleted = send("delete", "job001")
            assert (deleted.status_code, deleted.headers["location"]) == (303, "../submitted")
            until(lambda: "job001" not in user.get("/-/submitted").text)
            assert user.get(path).status_code == 404


def metrics_token(server: JobServer) -> str:
    return add_token(server.home / "tokens.json", "metrics", ["*"], replace=True)


def test_forms_of_other_sites_of_other_tokens_and_without_a_token_do_nothing(
    running: JobServer,
) -> None:
    path = "/-/submitted/job002"
    tokens = running.home / "tokens.json"
    other = add_token(tokens, "other", ["*"], ["job003"], replace=True)
    with browser(running) as user, browser(running, other) as stranger:
        form = form_of(user.get(path).text)
        own = form_of(stranger.get("/-/submitted").text)
        data = {"action": "start", "form": form}
        site = {"Origin": "https://evil.example"}
        fetched = {"Sec-Fetch-Site": "same-site"}
        assert user.post(path, data=data, headers=site).status_code == 403
        assert user.post(path, data=data, headers=fetched).status_code == 403
        assert user.post(path, data={"action": "start"}).status_code == 403
        assert user.post(path, data={"action": "start", "form": own}).status_code == 403
        assert stranger.post(path, data=data).status_code == 403
        assert stranger.post(path, data={"action": "start", "form": own}).status_code == 403
        assert stranger.get(path).status_code == 403
        assert stranger.get("/-/submitted").text.count('class="status ') == 1
    assert httpx.post(f"{running.url}{path}", data=data).status_code == 401
    bearer = {"Authorization": f"Bearer {running.token}"}
    assert httpx.post(f"{running.url}{path}", data=data, headers=bearer).status_code == 401
    with running.client() as client:
        assert client.submitted_job("job002")["desired"] == "stopped"


def test_an_epoch_that_is_too_old_is_shown(tmp_path: Path) -> None:
    with job_server(tmp_path) as own, own.client() as client, browser(own) as user:
        client.submit(document(tmp_path), "shop", alert_after="1 second")
        until(lambda: client.submitted_job("shop")["is_late"])
        assert "no epoch yet, and it is late after 1 second" in user.get("/-/submitted/shop").text
        assert '<span class="status bad">no epoch yet</span>' in user.get("/-/submitted").text
