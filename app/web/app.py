"""Composition of the web application: its parts, its routes, and what it does between requests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from stream_recon.app.web.access import Access, AccessPolicy
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.limits import DEFAULT_LIMITS, WebLimits
from stream_recon.app.web.proxy import ViewerProxy
from stream_recon.app.web.routes import Routes
from stream_recon.app.web.runner import PROGRAM, JobRunner
from stream_recon.app.web.scan_routes import ScanRoutes
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
) -> Access:
    """The ASGI application of a data folder, whose folders exist.

    ``jobs``: reconstructions at a time; ``program``: the command line program that runs them.
    """
    store = JobStore(data.queue)
    runner = JobRunner(store, data, jobs, limits.scans, program)
    viewers = Viewers(runner, data, limits)
    runner.on_ended = viewers.note_end
    routes, proxy = Routes(data, store, runner, viewers, limits), ViewerProxy(viewers)
    scans = ScanRoutes(routes.scans, runner)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        runner.start()
        tasks = [
            asyncio.create_task(each)
            for each in (_keep_house(routes, viewers, limits.housekeeping_s), store.keep_saved())
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(runner.close(), viewers.close_all())
            store.close()

    application = Starlette(
        routes=[
            Route("/", _page("index.html")),
            Route("/scan", _page("scan.html")),
            Route("/api/state", routes.state),
            Route("/api/uploads", routes.create_upload, methods=["POST"]),
            Route("/api/uploads/{id}", routes.upload, methods=["GET", "PATCH", "DELETE"]),
            Route("/api/sources", routes.add_source, methods=["POST"]),
            Route("/api/jobs/{id}", routes.job, methods=["DELETE"]),
            Route("/api/jobs/{id}/{action}", routes.job, methods=["POST"]),
            Route("/api/exports/{id}", routes.download),
            Route("/api/results/{name}", routes.result, methods=["DELETE"]),
            Route("/api/results/{name}/picture", routes.picture),
            Route("/api/results/{name}/{action}", routes.result, methods=["POST"]),
            Route("/api/scans", scans.create_scan, methods=["POST"]),
            Route("/api/scans/{id}/frames", scans.scan_frame, methods=["POST"]),
            Route("/api/scans/{id}/end", scans.end_scan, methods=["POST"]),
            Route("/api/scans/{id}", scans.scan_state),
            WebSocketRoute("/api/scans/{id}/stream", scans.scan_socket),
            Route("/view/{name}", proxy.page),
            WebSocketRoute("/view/{name}", proxy.socket),
            WebSocketRoute("/view/{name}/", proxy.socket),
            Route("/view/{name}/{path:path}", proxy.page),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={500: _failed},
        lifespan=lifespan,
    )
    return Access(application, policy, limits.sockets)


def _page(name: str) -> Any:
    async def page(_: Request) -> Response:
        return FileResponse(STATIC / name, media_type="text/html; charset=utf-8")

    return page


async def _keep_house(routes: Routes, viewers: Viewers, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await viewers.close_idle()
            routes.scans.close_idle()
            await routes.tend_uploads()
        except (OSError, StreamReconError) as error:  # such as of one upload: the others are tended the next time
            log.warning("the server cannot tend its uploads, scans and viewers: %s", error)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server made an error: see its terminal"}, 500)
