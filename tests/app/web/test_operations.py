"""The REST interface as its description states it, probes, and figures."""

import json
import logging
import re
from pathlib import Path

from stream_recon.app.result.run_record import VERDICT
from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.limits import WebLimits
from stream_recon.app.web.monitoring import JsonLines
from tests.app.result.test_writer import write_run
from tests.app.web.serving import VIDEO, served, upload

PAGES = {"/", "/scan", "/view/{name}", "/view/{name}/{path:path}"}
"""Routes for people."""
FIGURE = r'# (HELP|TYPE) \w+ .*|\w+(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+'
"""A line of Prometheus' text format."""
GARBAGE = (
    b"",
    b"[]",
    b'{"name": [], "size": {}, "options": 7, "address": null, "format": 3}',
    b"\xff",
    b'{"size": 1e999}',
)


def test_all_routes_but_those_of_pages_come_of_the_described_table() -> None:
    """That each described operation has a route is what its answers show, below."""
    source = (Path(__file__).resolve().parents[3] / "app" / "web" / "app.py").read_text(encoding="utf-8")
    assert set(re.findall(r'\bRoute\(\s*"([^"]*)"', source)) == PAGES


def test_each_operation_answers_garbage_as_described(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, operations in paths.items():
            for method, operation in operations.items():
                for body in GARBAGE if "requestBody" in operation else (b"",):
                    at = path.replace("{id}", "1").replace("{name}", "hall")
                    answer = client.request(method, at, content=body)
                    assert str(answer.status_code) in operation["responses"], (method, at, body, answer.text)
                    assert answer.status_code != 500, (method, at, body)
                    kinds = operation["responses"][str(answer.status_code)]["content"]
                    assert answer.headers["content-type"].partition(";")[0] in kinds, (method, at)


def test_an_unknown_action_changes_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        write_run(tmp_path / "data" / "hall")
        assert client.post("/api/results/hall/remove_all", json={}).status_code == 404
        assert set(client.post("/api/results/hall").headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
        assert [each["name"] for each in client.get("/api/results").json()["results"]] == ["hall"]
        assert client.get("/api/results/hall").json()["name"] == "hall"
        assert client.get("/api/results/none").status_code == 404


def test_jobs_are_listed_and_told(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0, limits=WebLimits(waiting_jobs=1)) as client:
        job = upload(client, VIDEO)["job"]
        assert client.get(f"/api/jobs/{job}").json()["state"] == "queued"
        assert [each["id"] for each in client.get("/api/jobs").json()["jobs"]] == [job]
        busy = client.post("/api/sources", json={"address": "0"})
        assert busy.status_code == 429 and int(busy.headers["retry-after"]) > 0


def test_probes_need_no_token_and_figures_do(tmp_path: Path) -> None:
    reach = AccessPolicy("0.0.0.0", "a" * 22)
    with served(tmp_path / "data", jobs=0, reach=reach) as client:
        assert client.get("/healthz", headers={"Host": "10.1.2.3:8080"}).json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"weights": True, "free_sessions": WebLimits().sessions}
        assert client.get("/metrics").status_code == client.get("/openapi.json").status_code == 403
        bearer = {"Authorization": f"Bearer {reach.token}"}
        assert 'refusals_total{code="403"} 2' in client.get("/metrics", headers=bearer).text
        assert client.get("/metrics", headers={"Authorization": f"Bearer {reach.token}x"}).status_code == 403


def test_lines_of_log_are_json_with_the_session() -> None:
    for text in ("ends", 'ends\n{"level": "INFO"}\r\x1b[2J\u2028"'):
        record = logging.makeLogRecord({"msg": "session %s", "args": (text,), "session": "ab"})
        line = JsonLines().format(record)
        assert len(line.splitlines()) == 1 and line.isprintable()
        assert (json.loads(line)["message"], json.loads(line)["session"]) == (f"session {text}", "ab")


def test_labels_of_figures_are_quoted(tmp_path: Path) -> None:
    """A verdict of a stranger's result adds no line of its own to the figures."""
    with served(tmp_path / "data", jobs=0) as client:
        write_run(tmp_path / "data" / "hall")
        record = tmp_path / "data" / "hall" / "run.json"
        verdict = {"level": 'good"} 1\nstream_recon_sessions 7\n#', "reason": "a", "advice": "b"}
        record.write_text(json.dumps({**json.loads(record.read_text()), VERDICT: verdict}))
        text = client.get("/metrics").text
        assert all(re.fullmatch(FIGURE, line) for line in text.splitlines()), text
        assert "stream_recon_sessions 0" in text.splitlines()
