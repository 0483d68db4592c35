"""Composition of the web application: its parts, its routes, and what it does between requests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from stream_recon.app.web.access import Access, AccessPolicy
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.engine_process import ENGINE
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.limits import DEFAULT_LIMITS, WebLimits
from stream_recon.app.web.monitoring import ServerMetrics
from stream_recon.app.web.operations import Health, operations, routes_of
from stream_recon.app.web.proxy import ViewerProxy
from stream_recon.app.web.routes import Routes
from stream_recon.app.web.runner import PROGRAM, JobRunner
from stream_recon.app.web.sessions import Sessions
from stream_recon.app.web.threads import LONG_SECONDS, in_thread
from stream_recon.app.web.viewers import Viewers
from stream_recon.configs.errors import StreamReconError

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"


def make_app(
    data: DataFolder,
    policy: AccessPolicy,
    jobs: int = 1,
    program: Sequence[str] = PROGRAM,
    limits: WebLimits = DEFAULT_LIMITS,
    engine: Sequence[str] = ENGINE,
) -> Access:
    """The ASGI application of a data folder, whose folders exist.

    ``jobs``: reconstructions at a time; ``program``: the command line program that runs them; ``engine``: the command
    of sessions' engine.
    """
    store = JobStore(data.queue)
    runner = JobRunner(store, data, jobs, limits.scans, program)
    viewers = Viewers(runner, data, limits)
    routes, proxy = Routes(data, store, runner, viewers, limits), ViewerProxy(viewers)
    runner.on_ended, runner.take = viewers.note_end, routes.uploads.take
    metrics = ServerMetrics()
    sessions = Sessions(engine, routes.scans, metrics, limits)
    health = Health(routes, sessions, metrics, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        runner.start()
        tasks = [
            asyncio.create_task(each)
            for each in (_keep_house(data, routes, viewers, sessions, limits.housekeeping_s), store.keep_saved())
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(runner.close(), viewers.close_all(), sessions.close())
            store.close()

    application = Starlette(
        routes=[
            Route("/", _page("index.html")),
            Route("/scan", _page("scan.html")),
            *routes_of(operations(routes, health)),
            WebSocketRoute("/v1/stream", sessions.stream),
            Route("/view/{name}", proxy.page),
            WebSocketRoute("/view/{name}", proxy.socket),
            WebSocketRoute("/view/{name}/", proxy.socket),
            Route("/view/{name}/{path:path}", proxy.page),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={HTTPException: _refused, 500: _failed},
        lifespan=lifespan,
    )
    return Access(application, policy, limits.sockets, metrics)


def _page(name: str) -> Any:
    async def page(_: Request) -> Response:
        return FileResponse(STATIC / name, media_type="text/html; charset=utf-8")

    return page


async def _keep_house(data: DataFolder, routes: Routes, viewers: Viewers, sessions: Sessions, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await viewers.close_idle()
            sessions.check_engine()
            await in_thread(data.measure, routes.store.owned(), limit_s=LONG_SECONDS)
            await sessions.close_idle()
            await routes.tend_uploads()
        except (OSError, StreamReconError) as error:  # such as of one upload: the others are tended the next time
            log.warning("the server cannot tend its uploads and viewers: %s", error)


async def _refused(_: Request, error: Any) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server made an error: see its terminal"}, 500)
