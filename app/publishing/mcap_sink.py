"""Recording of a run as an MCAP file with the schemas of Foxglove."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_recon.app.publishing.foxglove_messages import FoxgloveEncoder, channels, foxglove_library
from stream_recon.app.publishing.messages import Message, Topic, Transforms
from stream_recon.configs.errors import OutputError


class McapSink:
    """Records every message under its stamp. The name has ``.part`` in it until `close`."""

    lossless = True

    def __init__(self, path: Path) -> None:
        """Raises OutputError: the file exists or cannot be written; ResourceError: the library is missing."""
        library = foxglove_library()
        self._path, self._part = path, path.with_name(f"{path.stem}.part{path.suffix}")
        if path.exists() or path.is_symlink():
            raise OutputError(f"{path} exists: choose another name for --publish")
        self._encoder = FoxgloveEncoder()
        self._context = context = library.Context()  # its end would close the channels
        try:
            # The library's threads report a full disk only at the end; this file object raises at once.
            self._file = self._part.open("wb")
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
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

    def start(self, wake: Callable[[], None]) -> None:
        pass

    def wants(self, topic: Topic) -> bool:
        return topic in self._channels or topic is Topic.TF_STATIC

    def joined(self) -> frozenset[Topic]:
        return frozenset()

    def send(self, topic: Topic, message: Message) -> None:
        data = self._encoder(message)
        if isinstance(message, Transforms) and message.static:
            return
        self._last_ns = max(self._last_ns, message.stamp_ns)
        # A message of earlier frames, such as a path, was made at the time of the last one.
        self._channels[topic].log(data, log_time=self._last_ns)

    def close(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
            self._file.close()
            self._part.rename(self._path)
        except (OSError, RuntimeError) as error:
            raise OutputError(f"{self._path} was not completed: {error}") from error
