"""Recording of a run as an MCAP file with the schemas of Foxglove."""

import logging
import os
from io import SEEK_CUR, SEEK_END, SEEK_SET, FileIO
from itertools import count
from pathlib import Path
from typing import Any

from stream_recon.app.core.output_file import give_name, open_new
from stream_recon.app.publishing.foxglove_messages import FoxgloveEncoder, channels, foxglove_library
from stream_recon.app.publishing.messages import Message, Topic, Transforms
from stream_recon.app.publishing.sink import Sink
from stream_recon.configs.errors import OutputError

log = logging.getLogger(__name__)


class McapSink(Sink):
    """Records every message under its stamp. The name has ``.part`` in it until `close`, and a number where a run that
    was killed has left such a file."""

    lossless = True

    def __init__(self, path: Path) -> None:
        """Raises OutputError: the file exists or cannot be written; ResourceError: the library is missing."""
        library = foxglove_library()
        if os.path.lexists(path):
            raise OutputError(f"{path} exists: move it, or choose another name for --publish")
        parts = (path.with_name(f"{path.stem}.part{number or ''}{path.suffix}") for number in count())
        self._path, self._part = path, next(part for part in parts if not os.path.lexists(part))
        self._encoder = FoxgloveEncoder()
        self._context = context = library.Context()  # its end would close the channels
        try:
            self._file = _RecordingFile(self._part)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        if not self._part.stem.endswith(".part"):
            log.warning("a run that was killed or goes on left a part of %s: this one is in %s", path, self._part)
        self._writer: Any = library.open_mcap(self._file, context=context)
        self._channels: dict[Topic, Any] = {}
        for each in channels():
            schema = library.Schema(name=each.schema_name, encoding=each.schema_encoding, data=each.schema)
            self._channels[each.topic] = library.Channel(
                each.topic.value, message_encoding=each.encoding, schema=schema, context=context
            )
        self._last_ns = 0

    @property
    def address(self) -> str:
        return str(self._path)

    def discard(self) -> None:
        """Remove what was written of a file that is not complete."""
        self._part.unlink(missing_ok=True)

    def wants(self, topic: Topic) -> bool:
        return topic in self._channels or topic is Topic.TF_STATIC

    def send(self, topic: Topic, message: Message) -> None:
        data = self._encoder(message)
        if isinstance(message, Transforms) and message.static:
            return
        self._last_ns = max(self._last_ns, message.stamp_ns)
        # A message of earlier frames, such as a path, was made at the time of the last one.
        self._channels[topic].log(data, log_time=self._last_ns)
        if self._file.error is not None:
            raise OutputError(f"{self._file.error.strerror or self._file.error}; what was written is in {self._part}")

    def close(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
            self._file.close()
            if self._file.error is None:
                give_name(self._part, self._path, overwrite=False)
        except (OSError, RuntimeError) as error:
            left = f"what was written is in {self._part}"
            raise OutputError(f"{self._path} was not completed: {error}; {left}") from error


class _RecordingFile(FileIO):
    """File that keeps its first error, and then only counts: the library prints errors of a file, and goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_new(path), "w")
        self.error: OSError | None = None
        self._at = self._end = 0

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                view = memoryview(data)
                while len(view):
                    view = view[super().write(view) :]
            except OSError as error:
                self.error = error
        self._at += len(data)
        self._end = max(self._end, self._at)
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self._at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._end}[whence]
        return self._at if self.error is not None else super().seek(self._at)
