"""Parts of endpoints: bodies of requests within bounds, and errors as one line of JSON."""

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from stream_recon.app.core.input_file import parse_json
from stream_recon.app.core.output_file import is_disk_full
from stream_recon.app.web.limits import RETRY, BusyError, ConflictError, MissingError, NoRoomError
from stream_recon.app.web.uploads import OffsetError
from stream_recon.configs.errors import ConfigError, InputError, ResourceError, StreamReconError

MAX_JSON_BYTES = 65_536
STATUSES = (
    (MissingError, 404), (ConflictError, 409), (NoRoomError, 507), (InputError, 415), (ResourceError, 503),
)  # fmt: skip
"""Statuses of errors; 400 for the others."""


def answered(endpoint: Callable[[Any, Request], Coroutine[Any, Any, Response]]) -> Any:
    """Decorator of endpoints: errors that a user can act on become one line of JSON."""

    async def answer(routes: Any, request: Request) -> Response:
        try:
            response = await endpoint(routes, request)
            if request.method not in ("GET", "HEAD"):
                # Before the answer, so that a kill loses nothing; what a full disk refuses is tried again.
                with suppress(OSError, ResourceError):
                    await routes.store.save()
            return response
        except OffsetError as error:
            return JSONResponse({"error": str(error), "offset": error.offset}, 409)
        except ClientDisconnect:
            return Response(status_code=400)
        except OSError as error:
            return _failure(f"the system refuses an operation: {error.strerror or error}", 507)
        except BusyError as error:
            return _failure(str(error), 429, RETRY)
        except StreamReconError as error:
            codes = (code for kind, code in STATUSES if isinstance(error, kind))
            return _failure(str(error), 507 if is_disk_full(error) else next(codes, 400))

    return answer


def _failure(reason: str, code: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason.encode(errors="replace").decode()}, code, headers)


async def json_of(request: Request, *keys: str) -> dict[str, Any]:
    """A request's JSON object, which has some of these keys; empty without a body. Raises ConfigError."""
    check_length(request, MAX_JSON_BYTES)
    data = b""
    async for block in request.stream():
        data += block
        if len(data) > MAX_JSON_BYTES:
            raise ConfigError("the request is too large")
    try:
        given = parse_json(data) if data else {}
        json.dumps(given, ensure_ascii=False).encode()  # texts have no halves of characters
    except ValueError as error:
        raise ConfigError("the request is no JSON") from error
    if not isinstance(given, dict):
        raise ConfigError("the request is no JSON object")
    if unknown := sorted(given.keys() - set(keys)):
        raise ConfigError(f"the request has {', '.join(unknown)[:200]}: use {', '.join(keys)}")
    return given


def check_length(request: Request, limit: int) -> None:
    """Raises ConfigError where the request announces a larger body."""
    announced = request.headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdecimal()) or len(announced) > 15 or int(announced) > limit:
        raise ConfigError(f"a request of this kind has at most {limit} bytes")
