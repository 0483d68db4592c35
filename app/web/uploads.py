"""Uploads in pieces: a piece that is cut off keeps what arrived, and the next one goes on from there."""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.core.output_file import open_again, replacing, write_new
from stream_recon.app.sources.growing import can_begin, mark_of
from stream_recon.app.web.contents import HEAD_BYTES, Content, content_of, unpack
from stream_recon.app.web.data_folder import MAX_NAME, DataFolder, safe_name
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.limits import USER, BusyError, MissingError, NoRoomError, check_share
from stream_recon.app.web.threads import LONG_SECONDS, in_thread
from stream_recon.configs.errors import ConfigError, InputError, OutputError

PIECE_BYTES = 8_000_000
"""Size of a piece that pages send."""
MAX_PIECE_BYTES = 4 * PIECE_BYTES
MAX_BYTES = 200_000_000_000
"""Largest upload; the disk's free space is the usual bound."""
LARGEST_SIZE = 2**53
"""Bytes that a page can count."""
MAX_OPEN = 64
"""Uploads that are not complete at a time."""
KEPT_SECONDS = 7 * 86400
"""Time after which an upload that nobody continued is removed."""


@dataclass(frozen=True)
class Upload:
    """An upload that is not complete."""

    id: str
    title: str
    """Name of the file on the user's machine, for display."""
    size: int
    options: dict[str, Any]
    created: float
    path: Path | None = None
    """Where it is reconstructed while the rest comes; None: it is not."""


@dataclass(frozen=True)
class StoredUpload:
    """A complete upload: what is reconstructed, and whether it was here before."""

    title: str
    path: Path
    options: dict[str, Any]
    known: bool


class OffsetError(Exception):
    """A piece that does not begin where the upload ends. ``offset``: the size of what has arrived."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the upload goes on at {offset}")
        self.offset = offset


class Uploads:
    """Files that arrive. Used from the server's event loop."""

    def __init__(self, store: JobStore, data: DataFolder, max_zip_files: int) -> None:
        self._db, self._data, self._max_zip_files = store.connection, data, max_zip_files
        self._turns: dict[str, int] = {}
        self._users: dict[str, str] = {}
        """Who began each upload since the start."""
        self._storing = asyncio.Lock()
        self._remove_stale()

    def open(self) -> list[tuple[Upload, int]]:
        """Uploads that are not complete, with the bytes that arrived."""
        return [(upload, self.offset(upload)) for upload in self._select("where sha256 is null")]

    def create(self, title: object, size: object, options: dict[str, Any]) -> Upload:
        """Announce an upload. Raises ConfigError, BusyError, NoRoomError where it is too large for the disk."""
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
            raise ConfigError("the file is empty, or its size is no number of bytes")
        if not isinstance(title, str) or not title.strip():
            raise ConfigError("the file has no name")
        waiting = self.open()
        if len(waiting) >= MAX_OPEN:
            raise BusyError(f"{MAX_OPEN} uploads are not complete: continue or remove one")
        mine = [each for each in waiting if self._users.get(each[0].id) == USER.get()]
        check_share(len(mine), MAX_OPEN, "uploads")
        room = MAX_BYTES
        for user, uploads in (("", waiting), (USER.get(), mine)):
            promised = sum(upload.size - offset for upload, offset in uploads)
            room = min(room, self._data.free_bytes(user) - promised)
        if size > room:
            raise NoRoomError(f"the file has {size / 1e9:.1f} GB, and there is room for {max(0, room) / 1e9:.1f} GB")
        shown = "".join(c if c.isprintable() else "?" for c in title)[: 2 * MAX_NAME]
        upload = Upload(secrets.token_hex(8), shown, size, options, time.time())
        write_new(self.path(upload), b"", 0o600)
        return self._added(upload)

    async def take(self, file: Path, title: str) -> StoredUpload:
        """Store a file of the server, which is moved, as an upload that is complete. Raises InputError, OSError."""
        upload = Upload(secrets.token_hex(8), title, file.stat().st_size, {}, time.time())
        file.replace(self.path(upload))
        return await self.complete(self._added(upload))

    def _added(self, upload: Upload) -> Upload:
        self._db.execute(
            "insert into uploads(id, title, size, options, created) values(?, ?, ?, ?, ?)",
            (upload.id, upload.title, upload.size, json.dumps(upload.options), upload.created),
        )
        self._users[upload.id] = USER.get()
        return upload

    def get(self, number: str) -> Upload:
        """An incomplete upload. Raises MissingError where there is none."""
        uploads = self._select("where sha256 is null and id=?", number)
        if not uploads:
            raise MissingError("there is no such upload: begin it again")
        return uploads[0]

    def offset(self, upload: Upload) -> int:
        """Bytes that have arrived."""
        with suppress(OSError):
            return self.path(upload).stat().st_size
        return 0

    def remove(self, upload: Upload) -> None:
        """Forget an incomplete upload."""
        self._turns.pop(upload.id, None)
        if upload.path is None:
            self.path(upload).unlink(missing_ok=True)
        else:
            shutil.rmtree(upload.path.parent, ignore_errors=True)
        self._db.execute("delete from uploads where id=?", (upload.id,))

    async def append(self, upload: Upload, offset: int, blocks: AsyncIterator[bytes]) -> int:
        """Append a piece; returns the new size. A later call for the same upload ends this one.

        Raises OffsetError, OutputError where the piece or the file is larger than announced, OSError.
        """
        turn = self._turns[upload.id] = self._turns.get(upload.id, 0) + 1
        end = self.offset(upload)
        if offset != end:
            raise OffsetError(end)
        begin = end

        def write(block: bytes) -> None:
            file.seek(end)  # not by its descriptor: once the request is given up, that may be of another file
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]

        with await in_thread(open_again, self.path(upload)) as file:
            async for block in blocks:
                if self._turns.get(upload.id) != turn:
                    raise OffsetError(self.offset(upload))
                if end + len(block) > upload.size or end + len(block) - begin > MAX_PIECE_BYTES:
                    raise OutputError("the piece is larger than announced")
                await in_thread(write, block)
                end += len(block)
        return end

    def begin(self, upload: Upload) -> Upload | None:
        """The upload where it is reconstructed while the rest of it comes; None where that is not possible, or not yet.

        What may be here already is not begun: its hash tells when it is complete. Raises OSError.
        """
        piece = self.path(upload)
        is_possible = os.name == "posix" and upload.path is None and can_begin(piece)
        if not is_possible or self._may_be_known(upload):
            return None
        with open_regular(piece) as file:
            content = content_of(file.read(HEAD_BYTES))
        if content is None or content.kind != "video":
            return None
        folder = self._data.uploads / upload.id
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{safe_name(upload.title.rpartition('.')[0] or upload.title)}{content.suffix}"
        with replacing(mark_of(path), 0o600) as mark:
            mark.write(json.dumps({"size": upload.size}).encode())
        piece.rename(path)
        self._db.execute("update uploads set path=? where id=?", (str(path), upload.id))
        return replace(upload, path=path)

    def waits_for_its_end(self, upload: Upload) -> bool:
        """Whether an upload is a video that can only be reconstructed once all of it is here."""
        piece = self.path(upload)
        with suppress(OSError), open_regular(piece) as file:
            content = content_of(file.read(HEAD_BYTES))
            return content is not None and content.kind == "video" and can_begin(piece) is False
        return False

    def growing(self) -> list[Upload]:
        """Uploads that are reconstructed while they come."""
        return self._select("where sha256 is null and path is not null")

    async def complete(self, upload: Upload) -> StoredUpload:
        """Store a file all of whose bytes are there, once for each content. Raises InputError, OSError."""
        async with self._storing:  # the same file may arrive twice at the same time
            return await self._complete(upload)

    async def _complete(self, upload: Upload) -> StoredUpload:
        piece = self.path(upload)
        sha256 = await in_thread(_file_hash, piece, limit_s=LONG_SECONDS)
        if upload.path is not None:
            mark_of(upload.path).unlink(missing_ok=True)
            self._db.execute("update uploads set sha256=? where id=?", (sha256, upload.id))
            return StoredUpload(upload.title, upload.path, upload.options, known=False)
        known = self._db.execute("select path from uploads where sha256=? and path is not null", (sha256,)).fetchone()
        if known is not None and Path(known[0]).exists():
            self.remove(upload)
            return StoredUpload(upload.title, Path(known[0]), upload.options, known=True)
        with open_regular(piece) as file:
            content = content_of(file.read(HEAD_BYTES))
        if content is None:
            self.remove(upload)
            raise InputError(f"{upload.title} is no video, photograph, recording of ROS or ZIP file of photographs")
        try:
            path = await in_thread(self._store, upload, sha256, content, limit_s=LONG_SECONDS)
        except InputError:
            self.remove(upload)
            raise
        self._db.execute("delete from uploads where sha256=?", (sha256,))
        self._db.execute("update uploads set sha256=?, path=? where id=?", (sha256, str(path), upload.id))
        return StoredUpload(upload.title, path, upload.options, known=False)

    async def remove_stored(self, source: str) -> None:
        """Remove a complete upload by the path that was reconstructed; other paths are left alone."""
        row = self._db.execute("select sha256 from uploads where path=?", (source,)).fetchone()
        if row is not None and row[0]:
            self._db.execute("delete from uploads where path=?", (source,))
            folder = self._data.uploads / Path(source).relative_to(self._data.uploads).parts[0]
            await in_thread(shutil.rmtree, folder, True, limit_s=LONG_SECONDS)

    def _store(self, upload: Upload, sha256: str, content: Content) -> Path:
        """Move a complete file to a folder named by its hash, unpacked if it is a ZIP file."""
        folder, piece = self._data.uploads / sha256, self.path(upload)
        shutil.rmtree(folder, ignore_errors=True)  # of an upload that a kill ended here
        folder.mkdir(mode=0o700)
        stem = safe_name(upload.title.rpartition(".")[0] or upload.title)
        try:
            if content.kind != "zip":
                return piece.replace(folder / f"{stem}{content.suffix}")
            unpack(piece, folder / stem, self._data.free_bytes(), self._max_zip_files)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        piece.unlink()
        inside = next((folder / stem).iterdir())
        return inside if inside.stem == "video" else folder / stem

    def _may_be_known(self, upload: Upload) -> bool:
        """Whether a stored file has the size and the first bytes of an upload."""
        rows = self._db.execute(
            "select path from uploads where size=? and path is not null and id<>?", (upload.size, upload.id)
        )
        with open_regular(self.path(upload)) as file:
            head = file.read(HEAD_BYTES)
        for (path,) in rows:
            with suppress(OSError), open_regular(Path(path)) as file:
                if file.read(HEAD_BYTES) == head:
                    return True
        return False

    def path(self, upload: Upload) -> Path:
        """Where its bytes are written."""
        return upload.path or self._data.uploads / f"{upload.id}.piece"

    def _select(self, condition: str, *values: str) -> list[Upload]:
        rows = self._db.execute(f"select id, title, size, options, created, path from uploads {condition}", values)
        return [
            Upload(number, title, size, json.loads(given), at, Path(path) if path else None)
            for number, title, size, given, at, path in rows
        ]

    def _remove_stale(self) -> None:
        for upload in self._select("where sha256 is null"):
            if time.time() - upload.created > KEPT_SECONDS or not self.path(upload).exists():
                self.remove(upload)


def _file_hash(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
