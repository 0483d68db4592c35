"""Endpoints of scans: frames of a phone by web socket or POST, and what it shows."""

import asyncio
import json
import struct
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from stream_recon.app.web.commands import checked_title
from stream_recon.app.web.requests import answered, check_length, finite, json_of, number
from stream_recon.app.web.runner import JobRunner
from stream_recon.app.web.scans import MAX_FRAME_BYTES, Scan, Scans
from stream_recon.configs.errors import InputError, OutputError, StreamReconError

PUSH_SECONDS = 0.1
"""Time between two looks for news for a phone."""


class ScanRoutes:
    """Endpoints below ``/api/scans``."""

    def __init__(self, scans: Scans, runner: JobRunner) -> None:
        self._scans, self._runner, self.store = scans, runner, scans.store

    @answered
    async def create_scan(self, request: Request) -> Response:
        body = await json_of(request, "name")
        scan = await self._scans.create(checked_title(body.get("name")))
        return JSONResponse({"id": scan.id, "name": scan.job.name}, 201)

    @answered
    async def scan_frame(self, request: Request) -> Response:
        """A frame by POST; the answer is its acknowledgement."""
        scan = self._scans.get(request.path_params["id"])
        check_length(request, MAX_FRAME_BYTES)
        data = b""
        async for block in request.stream():
            data += block
            if len(data) > MAX_FRAME_BYTES:
                raise InputError("a frame has at most 2 MB")
        return JSONResponse(await self._scans.add(scan, data, number(request.query_params.get("captured"))))

    @answered
    async def scan_state(self, request: Request) -> Response:
        """What the phone is told between frames."""
        scan = self._scans.get(request.path_params["id"])
        scan.read_feedback()
        return JSONResponse({"posed": scan.posed, "say": scan.say})

    @answered
    async def end_scan(self, request: Request) -> Response:
        scan = self._scans.get(request.path_params["id"])
        if not scan.count:
            await self._runner.stop(scan.job.id)
        self._scans.end(scan)
        return JSONResponse({"name": scan.job.name})

    async def scan_socket(self, phone: WebSocket) -> None:
        """Frames by web socket: eight bytes with the time of capture (ms, float64), then the JPEG picture."""
        try:
            scan = self._scans.get(phone.path_params["id"])
        except OutputError:
            await phone.close(1008)
            return
        await phone.accept()
        news = asyncio.create_task(_push(phone, scan))
        try:
            while True:
                data = await phone.receive_bytes()
                try:
                    if len(data) < 8:
                        raise InputError("a message has a time and a picture")
                    answer = await self._scans.add(scan, data[8:], finite(struct.unpack("<d", data[:8])[0]))
                except StreamReconError as error:
                    answer = {"error": str(error), "ended": scan.ended}
                except OSError as error:
                    answer = {"error": f"the frame cannot be stored: {error.strerror}", "ended": False}
                await phone.send_text(json.dumps(answer))
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass
        finally:
            news.cancel()
            with suppress(RuntimeError):
                await phone.close()


async def _push(phone: WebSocket, scan: Scan) -> None:
    """Send a phone what changed between its frames."""
    sent: tuple[int, str] | None = None
    while not scan.ended:
        scan.read_feedback()
        news = scan.posed, scan.say
        if news != sent:
            sent = news
            with suppress(RuntimeError, WebSocketDisconnect):
                await phone.send_text(json.dumps({"posed": scan.posed, "say": scan.say}))
        await asyncio.sleep(PUSH_SECONDS)
