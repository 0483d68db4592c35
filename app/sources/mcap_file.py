"""MCAP files of other programs than ROS 2's recorder: Foxglove's messages in protobuf or JSON, and those of ROS 1.

mcap.dev/spec, docs.foxglove.dev/docs/sdk/schemas, protobuf.dev/programming-guides/encoding.
"""

import base64
import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stream_recon.app.core.input_file import open_regular
from stream_recon.configs.errors import InputError, missing_library

SCHEMAS = {
    "CompressedImage": ("sensor_msgs/msg/CompressedImage", "timestamp data format frame_id"),
    "RawImage": ("sensor_msgs/msg/Image", "timestamp width height encoding step data frame_id"),
    "CameraCalibration": ("sensor_msgs/msg/CameraInfo", "timestamp width height distortion_model D K R P frame_id"),
}
"""Type of ROS that is like a message of Foxglove's, and the names of its fields from the first on."""
EMPTY: dict[str, Any] = {"data": b"", **dict.fromkeys("DKRP", ())}
EMPTY |= dict.fromkeys(("format", "encoding", "distortion_model", "frame_id"), "")
"""Values of fields that a message leaves out, where they are no numbers."""


def alike(schema: str) -> str:
    """ROS 2's name of a message type, of a like one for Foxglove's; the name itself for others."""
    package, _, name = schema.replace("/msg/", "/").replace(".", "/").rpartition("/")
    if package in ("foxglove", "foxglove_msgs") and name in SCHEMAS:
        return SCHEMAS[name][0]
    return f"{package}/msg/{name}" if schema.count("/") == 1 else schema


class McapFile:
    """Messages of an MCAP file, with the interface of rosbags' `AnyReader`."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: the file has no index; ResourceError: a library is missing."""
        try:
            from mcap.reader import make_reader
        except ImportError as error:
            raise missing_library("reading of MCAP files other than ROS 2's", "mcap") from error
        self._stores: dict[str, Any] = {}
        self._file = open_regular(path)
        self._reader = make_reader(self._file)
        summary = self._reader.get_summary()
        if summary is None or summary.statistics is None:
            raise InputError(f"{path.name} has no index: restore it with 'mcap recover {path.name}'")
        counts = summary.statistics.channel_message_counts
        grouped = defaultdict(list)
        for number, channel in summary.channels.items():
            schema = summary.schemas.get(channel.schema_id)
            grouped[channel.topic, alike(schema.name) if schema is not None else ""].append(number)
        self.connections = [
            SimpleNamespace(topic=topic, msgtype=kind, msgcount=sum(counts.get(n, 0) for n in ids), ids=ids)
            for (topic, kind), ids in grouped.items()
        ]
        self.topics = {connection.topic: connection for connection in self.connections}

    def messages(self, connections: Sequence[Any]) -> Iterator[tuple[Any, int, Any]]:
        """Connection, time of recording in nanoseconds, and message of the connections, by time."""
        by_id = {number: connection for connection in connections for number in connection.ids}
        for schema, channel, message in self._reader.iter_messages([connection.topic for connection in connections]):
            if channel.id in by_id:
                yield by_id[channel.id], message.log_time, (schema, channel.message_encoding, message.data)

    def deserialize(self, data: Any, _msgtype: str) -> Any:
        """A message with ROS's or Foxglove's fields. Raises ValueError: an encoding that is not known."""
        schema, encoding, content = data
        name = schema.name.rpartition(".")[2]
        if encoding == "json":
            return _of_json(json.loads(content), SCHEMAS.get(name, ("", ""))[1].split())
        if encoding == "protobuf" and name in SCHEMAS:
            return _of_protobuf(bytes(content), SCHEMAS[name][1].split())
        if encoding in ("ros1", "cdr"):
            return self._of_ros(schema, encoding, content)
        raise ValueError(f"messages in {encoding!r} are not read")

    def _of_ros(self, schema: Any, encoding: str, content: bytes) -> Any:
        from rosbags import typesys as types

        kind = schema.name if "/msg/" in schema.name else schema.name.replace("/", "/msg/")
        if kind not in self._stores:
            store = types.get_typestore(types.Stores.ROS1_NOETIC if encoding == "ros1" else types.Stores.ROS2_HUMBLE)
            if kind not in store.fielddefs:
                text, is_idl = schema.data.decode(), schema.encoding.endswith("idl")
                found = types.get_types_from_idl(text) if is_idl else types.get_types_from_msg(text, kind)
                store.register({name: fields for name, fields in found.items() if name not in store.fielddefs})
            self._stores[kind] = store
        read = self._stores[kind].deserialize_ros1 if encoding == "ros1" else self._stores[kind].deserialize_cdr
        return read(content, kind)

    def close(self) -> None:
        self._file.close()


def _of_json(fields: dict[str, Any], names: Sequence[str]) -> SimpleNamespace:
    if missing := [name for name in names if name not in fields and name not in ("timestamp", "frame_id", *"DRP")]:
        raise ValueError(f"a message has no {missing[0]}")
    fields |= {name: int(fields[name]) for name in ("width", "height", "step") if name in fields}
    stamp = fields.get("timestamp") or {}
    message = SimpleNamespace(**fields)
    message.timestamp = SimpleNamespace(sec=int(stamp.get("sec", 0)), nanosec=int(stamp.get("nsec", 0)))
    if isinstance(fields.get("data"), str):
        message.data = base64.b64decode(fields["data"])
    return message


def _of_protobuf(data: bytes, names: Sequence[str]) -> SimpleNamespace:
    message: dict[str, Any] = {name: EMPTY.get(name, 0) for name in names}
    message["timestamp"] = SimpleNamespace(sec=0, nanosec=0)
    for number, value in _fields(data):
        name = names[number - 1] if 0 < number <= len(names) else ""
        if name == "timestamp":
            parts = dict(_fields(value))
            message[name] = SimpleNamespace(sec=parts.get(1, 0), nanosec=parts.get(2, 0))
        elif name in "DKRP" and name:
            message[name] += struct.unpack(f"<{len(value) // 8}d", value)
        elif name:
            is_number, is_text = name in ("width", "height", "step"), isinstance(EMPTY.get(name), str)
            message[name] = int.from_bytes(value, "little") if is_number else value.decode() if is_text else value
    return SimpleNamespace(**message)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an integer, or bytes. Raises IndexError or ValueError for damaged data."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(data, at)
        if kind not in (1, 2, 5) or at + length > len(data):
            raise ValueError("not a message of protobuf")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at
