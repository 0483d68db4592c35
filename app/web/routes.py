"""The server's HTTP interface: JSON for its own pages, uploads and downloads."""

import asyncio
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from stream_recon.app.sources.growing import is_growing
from stream_recon.app.web import commands
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import LARGEST_ID, JobStore, WebJob
from stream_recon.app.web.library import Library, ResultListing
from stream_recon.app.web.limits import USER, BusyError, ConflictError, MissingError, WebLimits, check_share
from stream_recon.app.web.requests import answered, check_length, json_of
from stream_recon.app.web.runner import JobRunner
from stream_recon.app.web.scans import Scans
from stream_recon.app.web.threads import LONG_SECONDS, in_thread
from stream_recon.app.web.uploads import MAX_BYTES, MAX_PIECE_BYTES, PIECE_BYTES, StoredUpload, Upload, Uploads
from stream_recon.app.web.viewers import Viewers
from stream_recon.configs.errors import ConfigError, ResourceError

MAX_SHOWN = 200
"""Latest jobs that a page lists."""
LIST_SECONDS = 5.0
"""Time that a page waits for the list of results, before it gets the last one."""
IDLE_UPLOAD_SECONDS = 20.0
"""Time without a byte after which a page lists an upload that it did not begin itself."""
STALLED = "waits for the rest of its upload"
CANCELLED = "its upload was cancelled: what was reconstructed is kept"


class Routes:
    """Endpoints. They know the parts of the server; no part knows another's state."""

    def __init__(
        self, data: DataFolder, store: JobStore, runner: JobRunner, viewers: Viewers, limits: WebLimits
    ) -> None:
        self._data, self.store, self._runner, self._viewers = data, store, runner, viewers
        self._limits = limits
        self.library, self.uploads = Library(data), Uploads(store, data, limits.zip_files)
        self.scans = Scans(store, runner, data, limits)
        self._reading: asyncio.Future[list[ResultListing]] | None = None
        self._entries: list[ResultListing] = []
        """Results as they were last read."""

    @answered
    async def state(self, request: Request) -> Response:
        """All that the start page shows."""
        entries = await self.listed_results()
        jobs = [job for job in self.store.all()[:MAX_SHOWN] if job.state != "done" or job.kind == "export"]
        uploads = self.uploads.open()
        shown, idle, free = await in_thread(self._seen, jobs, [self.uploads.path(upload) for upload, _ in uploads])
        return JSONResponse(
            {
                "results": [asdict(entry) for entry in entries],
                "jobs": shown,
                "uploads": [
                    {"id": upload.id, "title": upload.title, "size": upload.size, "offset": offset, "idle": is_idle}
                    for (upload, offset), is_idle in zip(uploads, idle, strict=True)
                ],
                "limits": {"bytes": min(MAX_BYTES, free), "piece": PIECE_BYTES},
                "exports": [
                    {"name": name, "label": form.label(suffix)} for name, (form, suffix) in commands.WEB_EXPORTS.items()
                ],
            }
        )

    @answered
    async def jobs(self, request: Request) -> Response:
        """The latest jobs, or one of them."""
        is_one = "id" in request.path_params
        jobs = [self._job(request)] if is_one else self.store.all()[:MAX_SHOWN]
        shown = await in_thread(lambda: [self._shown(job) for job in jobs])
        return JSONResponse(shown[0] if is_one else {"jobs": shown})

    @answered
    async def results(self, request: Request) -> Response:
        """All results, or one of them."""
        name = request.path_params.get("name")
        shown = [asdict(entry) for entry in await self.listed_results() if name in (None, entry.name)]
        if name is not None and not shown:
            raise MissingError("there is no such result")
        return JSONResponse(shown[0] if name is not None else {"results": shown})

    async def listed_results(self) -> list[ResultListing]:
        """The results, as last read where their drive is slow: one thread reads for all pages."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(in_thread(self.library.entries, limit_s=LONG_SECONDS))
        done, _ = await asyncio.wait([self._reading], timeout=LIST_SECONDS)
        with suppress(OSError, ResourceError):
            self._entries = done.pop().result() if done else self._entries
        return self._entries

    def _seen(self, jobs: list[WebJob], pieces: list[Path]) -> tuple[list[dict[str, Any]], list[bool], int]:
        """What files say: of each job, whether each upload rests, and the free bytes."""
        return [self._shown(job) for job in jobs], list(map(_is_idle, pieces)), self._data.free_bytes()

    @answered
    async def create_upload(self, request: Request) -> Response:
        body = await json_of(request, "name", "size", "options")
        options = commands.checked_options(body.get("options"))
        upload = self.uploads.create(body.get("name"), commands.whole(body.get("size")), options)
        await self.store.save_or(lambda: self.uploads.remove(upload))
        return JSONResponse({"id": upload.id, "offset": 0, "piece": PIECE_BYTES}, 201)

    @answered
    async def upload(self, request: Request) -> Response:
        """State (GET), a piece (PATCH with ``?offset=``) or removal (DELETE) of an upload."""
        upload = self.uploads.get(request.path_params["id"])
        if request.method == "DELETE":
            for job in self._jobs_of(upload):
                await self._runner.stop(job.id, CANCELLED)
            self.uploads.remove(upload)
            return JSONResponse({})
        offset = self.uploads.offset(upload)
        if request.method == "PATCH":
            check_length(request, MAX_PIECE_BYTES)
            position = request.query_params.get("offset", "")
            if not (position.isascii() and position.isdecimal() and len(position) < 20):
                raise ConfigError("say the offset of the piece")
            offset = await self.uploads.append(upload, int(position), request.stream())
        if offset < upload.size or request.method == "GET":
            answer = {"offset": offset, "size": upload.size}
            return JSONResponse(answer if request.method == "GET" else {**answer, **self._begin_early(upload)})
        return self._begin(await self.uploads.complete(self.uploads.get(upload.id)))

    def _begin_early(self, upload: Upload) -> dict[str, Any]:
        """Queue a video of which a part has come, or its job that waited for more, and say what a page shows of it."""
        for job in self._jobs_of(upload):
            if job.state == "stopped" and job.error == STALLED:
                self._runner.resume(job.id)
            return {"job": job.id}
        growing = self.uploads.begin(upload)
        if growing is None:
            return {"waits": self.uploads.waits_for_its_end(upload)}
        name = self._data.free_name(upload.title.rpartition(".")[0] or upload.title, self.store.names())
        return {"job": self._add("reconstruct", name, str(growing.path), upload.options).id}

    def _jobs_of(self, upload: Upload) -> list[WebJob]:
        """Jobs of an upload that is reconstructed while it comes."""
        return [job for job in self.store.all() if upload.path is not None and job.source == str(upload.path)]

    async def tend_uploads(self) -> None:
        """Stop the jobs whose uploads do not go on: they go on with the next piece, or once the upload is complete."""
        for upload in self.uploads.growing():
            for job in self._jobs_of(upload):
                if job.state == "running" and self._waits(job, _changed(self.uploads.path(upload))):
                    await self._runner.stop(job.id, STALLED)
        for job in self.store.all():
            is_stalled = job.state == "stopped" and job.error == STALLED
            if is_stalled and not is_growing(Path(job.source)) and Path(job.source).exists():
                self._runner.resume(job.id)

    def _waits(self, job: WebJob, last_byte: float) -> bool:
        """Whether a run has used all that came of its upload, and nothing more has come for a while."""
        now, last_frame = time.time(), self._runner.progress_time(job.id)
        if last_frame is None:  # it loads, or looks for the first frame
            return now - max(last_byte, job.started or 0.0) > self._limits.loading_s
        reads = self._runner.progress(job.id).get("step") == "frames"
        return reads and now - max(last_byte, last_frame) > self._limits.stall_s

    def _begin(self, stored: StoredUpload) -> Response:
        """Queue a complete upload, unless it has a result or a job."""
        source = str(stored.path)
        for job in self.store.all():
            began_early = not stored.known
            if job.source == source and (began_early or job.is_open or self._data.result(job.name) is not None):
                # A run that began while its video came may have failed for want of the rest.
                if began_early and (job.state == "failed" or job.error == STALLED):
                    self._runner.resume(job.id)
                return JSONResponse({"name": job.name, "job": job.id, "known": stored.known})
        name = self._data.free_name(stored.title.rpartition(".")[0] or stored.title, self.store.names())
        job = self._add("reconstruct", name, source, stored.options)
        return JSONResponse({"name": job.name, "job": job.id, "known": stored.known})

    @answered
    async def add_source(self, request: Request) -> Response:
        """Reconstruct a camera or an address."""
        body = await json_of(request, "address", "name", "options")
        address = commands.checked_address(body.get("address"))
        host = address.partition("://")[2].partition("/")[0].rpartition("@")[2]
        stem = Path(address).stem if commands.is_stored(address) else host
        title = commands.checked_title(body.get("name")) or stem
        name = self._data.free_name(str(title or f"camera-{address}")[:200], self.store.names())
        job = await self._add_stored("reconstruct", name, address, commands.checked_options(body.get("options")))
        return JSONResponse({"job": job.id, "name": job.name}, 201)

    @answered
    async def stop_job(self, request: Request) -> Response:
        job = self._job(request)
        if not self.scans.end(job.id):
            await self._runner.stop(job.id)
        return JSONResponse({})

    @answered
    async def resume_job(self, request: Request) -> Response:
        self._runner.resume(self._job(request).id)
        return JSONResponse({})

    @answered
    async def forget_job(self, request: Request) -> Response:
        job = self._job(request)
        if job.is_open:
            raise ConflictError("stop it first")
        await self._forget(job)
        if self._data.result(job.name) is None and all(job.source != other.source for other in self.store.all()):
            await self._remove_source(job.source)
        return JSONResponse({})

    @answered
    async def refine(self, request: Request) -> Response:
        name = self._result(request)
        return JSONResponse({"job": (await self._add_stored("refine", name, "", {})).id}, 201)

    @answered
    async def export(self, request: Request) -> Response:
        name, body = self._result(request), await json_of(request, "format", "box")
        options = commands.checked_export(body.get("format"), body.get("box"))
        return JSONResponse({"job": (await self._add_stored("export", name, body["format"], options)).id}, 201)

    @answered
    async def rename(self, request: Request) -> Response:
        name, body = self._result(request), await json_of(request, "name")
        await self._release(name)
        new = await in_thread(self.library.rename, name, body.get("name"), self.store.names())
        self.store.rename(name, new)
        return JSONResponse({"name": new})

    def _result(self, request: Request) -> str:
        """Name of the result that a path names. Raises MissingError."""
        return self.library.folder(request.path_params["name"]).name

    async def _release(self, name: str) -> None:
        """Close what reads a result. Raises ConflictError where a job of it waits or runs."""
        if any(job.is_open for job in self.store.of_result(name)):
            raise ConflictError("a job of it waits or runs: stop it first")
        await self._viewers.close(name)

    @answered
    async def remove(self, request: Request) -> Response:
        name, with_upload = self._result(request), (await json_of(request, "upload")).get("upload", False)
        if not isinstance(with_upload, bool):
            raise ConfigError("upload is true or false")
        await self._release(name)
        recorded = await in_thread(self.library.source, name)
        is_removed = await in_thread(self.library.remove, name, limit_s=LONG_SECONDS)
        jobs = self.store.of_result(name)
        for job in jobs:
            await self._forget(job)
        # What the result names may be an upload of others: it counts only where a job, maybe a dismissed one, had it.
        sources = self.store.sources(name) & {recorded, *(job.source for job in jobs)}
        self.store.forget_result(name)
        for source in sources - {job.source for job in self.store.all()} if with_upload else ():
            await self._remove_source(source)
        return JSONResponse({"gone": is_removed})

    async def _remove_source(self, source: str) -> None:
        """Remove what was uploaded or scanned; other paths are left alone."""
        await in_thread(_remove_inside, self._data.scans, Path(source), limit_s=LONG_SECONDS)
        await self.uploads.remove_stored(source)

    @answered
    async def picture(self, request: Request) -> Response:
        data = await in_thread(self.library.picture, request.path_params["name"])
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=60"})

    @answered
    async def download(self, request: Request) -> Response:
        """The file of an export that is done."""
        job = self._job(request)
        path = commands.export_file(job, self._data) if job.kind == "export" else None
        if path is None or job.state != "done" or not path.is_file():
            raise MissingError("there is no such file: export it again")
        return FileResponse(path, filename=path.name, media_type="application/octet-stream")

    def _job(self, request: Request) -> WebJob:
        """The job that a path names. Raises MissingError."""
        number = request.path_params["id"]
        is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(LARGEST_ID))
        job = self.store.get(int(number)) if is_number else None
        if job is None:
            raise MissingError("there is no such job")
        return job

    async def _add_stored(self, kind: Any, name: str, source: str, options: dict[str, Any]) -> WebJob:
        """`_add`, but not where the queue cannot be stored. Raises OSError, ResourceError."""
        job = self._queue(kind, name, source, options)
        await self.store.save_or(lambda: self._unqueue(job))
        self._runner.start()
        return job

    def _add(self, kind: Any, name: str, source: str, options: dict[str, Any]) -> WebJob:
        job = self._queue(kind, name, source, options)
        self._runner.start()
        return job

    def _queue(self, kind: Any, name: str, source: str, options: dict[str, Any]) -> WebJob:
        self._data.check_quota()
        waiting = [job.id for job in self.store.all() if job.state == "queued"]
        if len(waiting) >= self._limits.waiting_jobs:
            raise BusyError(f"{self._limits.waiting_jobs} jobs wait already")
        mine = sum(self.store.users.get(number) == USER.get() for number in waiting)
        check_share(mine, self._limits.waiting_jobs, "waiting jobs")
        return self.store.add(kind, name, source, options)

    def _unqueue(self, job: WebJob) -> None:
        known = self.store.get(job.id)
        if known is not None and known.state == "queued":  # another request may have started it
            self.store.remove(job.id)

    async def _forget(self, job: WebJob) -> None:
        """Remove a job's entry with its own files."""
        self.store.remove(job.id)
        for folder in (self._data.jobs / str(job.id), self._data.exports / str(job.id)):
            await in_thread(_remove_inside, folder.parent, folder, limit_s=LONG_SECONDS)

    def _shown(self, job: WebJob) -> dict[str, Any]:
        shown: dict[str, Any] = {key: getattr(job, key) for key in ("id", "kind", "name", "state", "error", "ended")}
        shown["live"] = commands.is_live(job.source)
        if job.kind == "reconstruct" and job.is_open and is_growing(Path(job.source)):
            shown["arrives"] = "later" if _is_idle(Path(job.source)) else "now"
        if job.state == "running":
            progress = shown["progress"] = self._runner.progress(job.id)
            shown["viewer"] = job.kind in ("reconstruct", "scan") and isinstance(progress.get("port"), int)
        if job.kind == "store":
            shown["output"] = job.source
        if job.kind == "export":
            shown["label"] = job.source
            with suppress(ConfigError, OSError):  # a format of another version has neither
                form, suffix = commands.web_export(job.source)
                shown["label"] = form.label(suffix)
                path = commands.export_file(job, self._data)
                shown |= {"file": path.name, "bytes": path.stat().st_size} if job.state == "done" else {}
        return shown


def _changed(path: Path) -> float:
    """Time of the last byte of an upload, in seconds since 1970."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _is_idle(path: Path) -> bool:
    return time.time() - _changed(path) > IDLE_UPLOAD_SECONDS


def _remove_inside(parent: Path, folder: Path) -> None:
    """Remove a folder of the server's own state, if it is directly inside ``parent``."""
    if folder.parent == parent and folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
