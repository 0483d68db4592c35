"""The table of the REST interface: its routes come of it, and its description (OpenAPI 3.1)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stream_recon.app.web.access import SAFE_METHODS
from stream_recon.app.web.commands import ADDRESS, BOOLEAN, BOX, CAMERA, OPTIONS, WEB_EXPORTS, Schema, store_pattern
from stream_recon.app.web.limits import RETRY, WebLimits
from stream_recon.app.web.monitoring import Labels, ServerMetrics, resident_bytes
from stream_recon.app.web.routes import Routes
from stream_recon.app.web.sessions import Sessions
from stream_recon.app.web.uploads import LARGEST_SIZE
from stream_recon.configs.errors import WeightsError
from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, weights_file

JSON = "application/json"
ANY_TEXT: Schema = {"type": "string"}
TEXT: Schema = {"type": "string", "pattern": r"\S"}
Keys = Mapping[str, Schema]
"""Schemas of an object's keys, which have a question mark where they may be left out."""
ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
REFUSALS = (400, 404, 409, 415, 429, 500, 503, 507)
"""Statuses of refused requests; see `answered`."""


@dataclass(frozen=True)
class Operation:
    """A request that the server carries out."""

    method: str
    path: str
    endpoint: Any
    summary: str
    body: Keys | str = field(default_factory=dict)
    """Keys of the JSON object; or a media type."""
    query: Keys = field(default_factory=dict)
    status: int = 200
    answer: str = JSON


class Health:
    """Endpoints for those who run the server."""

    def __init__(self, routes: Routes, sessions: Sessions, metrics: ServerMetrics, limits: WebLimits) -> None:
        self._routes, self._sessions, self._metrics, self._limits = routes, sessions, metrics, limits

    async def alive(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Whether the server has weights, and room for a session."""
        free, weights = self._limits.sessions - len(self._sessions), True
        try:
            weights_file(load_preset(EMBEDDED_PRESET), None)
        except WeightsError:
            weights = False
        is_ready = weights and free > 0
        return JSONResponse(
            {"weights": weights, "free_sessions": free}, 200 if is_ready else 503, {} if is_ready else RETRY
        )

    async def metrics(self, _: Request) -> Response:
        engine = self._sessions.engine.pid
        gauges: dict[tuple[str, Labels], float] = {
            ("sessions", ()): len(self._sessions),
            ("waiting_frames", ()): self._sessions.waiting,
            ("resident_bytes", (("process", "server"),)): resident_bytes(),
            ("resident_bytes", (("process", "engine"),)): 0 if engine is None else resident_bytes(engine),
        }
        states = Counter(job.state for job in self._routes.store.all())
        verdicts = Counter(entry.verdict or "none" for entry in await self._routes.listed_results())
        for name, label, counts in (("jobs", "state", states), ("results", "verdict", verdicts)):
            gauges |= {(name, ((label, key),)): count for key, count in counts.items()}
        return PlainTextResponse(self._metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


def operations(routes: Routes, health: Health) -> list[Operation]:
    """All of them."""
    store = store_pattern()
    schemas = {name: schema for name, (schema, _) in OPTIONS.items() if name != "output"}
    schemas |= {"output": _text(f"({store})")} if store else {}
    options = {"options?": _or_null(_object({f"{name}?": _or_null(schema) for name, schema in schemas.items()}))}
    new: Keys = {"name": TEXT, "size": {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE}, **options}
    sources = [ADDRESS.pattern, CAMERA.pattern, *filter(None, [store])]
    source: Keys = {"address": _text(f"({'|'.join(sources)})"), "name?": _or_null(ANY_TEXT), **options}
    export: Keys = {"format": {"enum": list(WEB_EXPORTS)}, "box?": _or_null(_text(BOX.pattern))}
    offset: Keys = {"offset": {"type": "integer", "minimum": 0, "maximum": LARGEST_SIZE}}
    table = [
        Operation("GET", "/api/state", routes.state, "all that the start page shows"),
        Operation("POST", "/api/uploads", routes.create_upload, "begin an upload", new, status=201),
        Operation("GET", "/api/uploads/{id}", routes.upload, "how much of an upload has come"),
        Operation("PATCH", "/api/uploads/{id}", routes.upload, "append a piece", "*/*", offset),
        Operation("DELETE", "/api/uploads/{id}", routes.upload, "remove an upload"),
        Operation(
            "POST", "/api/sources", routes.add_source, "reconstruct a stream, a camera, or a file in a store",
            source, status=201,
        ),
        Operation("GET", "/api/jobs", routes.jobs, "the latest jobs, the newest first"),
        Operation("GET", "/api/jobs/{id}", routes.jobs, "a job"),
        Operation("DELETE", "/api/jobs/{id}", routes.forget_job, "forget a job that does not run"),
        Operation("POST", "/api/jobs/{id}/stop", routes.stop_job, "end a job"),
        Operation("POST", "/api/jobs/{id}/resume", routes.resume_job, "let a stopped or failed job go on"),
        Operation(
            "GET", "/api/exports/{id}", routes.download, "the file of an export", answer="application/octet-stream"
        ),
        Operation("GET", "/api/results", routes.results, "all results, the last changed first"),
        Operation("GET", "/api/results/{name}", routes.results, "a result"),
        Operation("DELETE", "/api/results/{name}", routes.remove, "remove a result", {"upload?": BOOLEAN}),
        Operation("GET", "/api/results/{name}/picture", routes.picture, "a frame in the middle", answer="image/jpeg"),
        Operation("POST", "/api/results/{name}/refine", routes.refine, "queue a refinement", status=201),
        Operation("POST", "/api/results/{name}/export", routes.export, "queue an export", export, status=201),
        Operation("POST", "/api/results/{name}/rename", routes.rename, "rename a result", {"name": TEXT}),
        Operation("GET", "/healthz", health.alive, "whether the server answers"),
        Operation("GET", "/readyz", health.ready, "whether it has weights and room for a session; 503: it has not"),
        Operation("GET", "/metrics", health.metrics, "figures for Prometheus", answer="text/plain"),
    ]  # fmt: skip

    async def openapi(_: Request) -> Response:
        return JSONResponse(description(table))

    table.append(Operation("GET", "/openapi.json", openapi, "this description"))
    return table


def description(table: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a table of operations."""
    from stream_recon import __version__

    paths: dict[str, dict[str, Any]] = {}
    for each in table:
        shown: dict[str, Any] = {"summary": each.summary, "parameters": _parameters(each)}
        if each.body:
            kind, schema = (each.body, {}) if isinstance(each.body, str) else (JSON, _object(each.body))
            shown["requestBody"] = {"content": {kind: {"schema": schema}}, "required": bool(schema.get("required"))}
        good: dict[str, Any] = {each.answer: {"schema": {"type": "object"} if each.answer == JSON else {}}}
        answers: dict[str, Any] = {str(code): {"content": good} for code in {each.status, 200}}
        answers |= {str(code): {"content": {JSON: {"schema": ERROR}}} for code in REFUSALS}
        answers["403"] = {"content": {"text/plain": {"schema": {}}}}
        shown["responses"] = {
            code: {"description": HTTPStatus(int(code)).phrase, **answers[code]} for code in sorted(answers)
        }
        paths.setdefault(each.path, {})[each.method.lower()] = shown
    info = {"title": "stream-recon serve", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", operation.path)
    found = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    for name, schema in operation.query.items():
        found.append({"name": name.rstrip("?"), "in": "query", "required": not name.endswith("?"), "schema": schema})
    if operation.method not in SAFE_METHODS:
        found.append({"name": "X-Stream-Recon", "in": "header", "required": True, "schema": {"type": "string"}})
    return found


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(keys: Keys) -> Schema:
    required = [name for name in keys if not name.endswith("?")]
    properties = {name.rstrip("?"): schema for name, schema in keys.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def routes_of(table: Sequence[Operation]) -> list[Route]:
    """One route for each path, so that it tells all methods that it has."""
    paths: dict[str, dict[str, Any]] = {}
    for each in table:
        paths.setdefault(each.path, {})[each.method] = each.endpoint
    return [Route(path, _by_method(endpoints), methods=list(endpoints)) for path, endpoints in paths.items()]


def _by_method(endpoints: Mapping[str, Any]) -> Any:
    async def endpoint(request: Request) -> Response:
        found: Response = await endpoints["GET" if request.method == "HEAD" else request.method](request)
        return found

    return endpoint
