"""Containers of recordings with one element renamed, removed, added, moved or doubled: never other images silently."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

pytest.importorskip("rosbags")

from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.sources.bags import Bag
from tests.app.sources.test_rosbag import HEIGHT, WIDTH, picture
from tests.mutations import MARK, Mutant, of_parts, of_scalars, of_tree, silently_other


def read(path: Path) -> tuple[object, list[str]]:
    with open_source(str(path)) as source:
        frames = [(frame.index, round(frame.timestamp, 6), int(frame.rgb.sum())) for frame in source]
        return (frames, source.damaged, source.camera), source.warnings


def write(path: Path) -> Path:
    with Bag(path) as bag:
        bag.camera("/cam/camera_info", (WIDTH, HEIGHT), [70, 0, 31.5, 0, 70, 23.5, 0, 0, 1], [-0.1, 0.01, 0, 0, 0])
        for number in range(3):
            bag.raw("/cam/image", number, picture(number), "rgb8")
    return path


def test_no_change_of_the_metadata_of_ros_2_is_silent(tmp_path: Path) -> None:
    path = write(tmp_path / "walk")
    file = path / "metadata.yaml"
    content = yaml.safe_load(file.read_text())
    expected, said = read(path)
    assert not said

    def changed(tree: Any) -> tuple[object, list[str]]:
        file.write_text(yaml.safe_dump(tree, sort_keys=False))
        return read(path)

    changes = (*of_tree(content), *of_scalars(content, ("abc", None)))
    mutants = [replace(m, names=(*m.names, "metadata.yaml", path.name, "/cam/image")) for m in changes]
    assert len(mutants) > 100
    assert silently_other(changed, mutants, expected, InputError) == []


Fields = list[tuple[str, bytes]]
"""Names and values of the head of a record of ROS 1."""


def packed(fields: Fields) -> bytes:
    joined = b"".join(
        struct.pack("<I", len(name) + 1 + len(value)) + name.encode() + b"=" + value for name, value in fields
    )
    return struct.pack("<I", len(joined)) + joined


def unpacked(data: bytes) -> Fields:
    at, fields = 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        name, _, value = data[at + 4 : at + 4 + length].partition(b"=")
        fields.append((name.decode(), value))
        at += 4 + length
    return fields


def records(data: bytes, at: int) -> Iterator[tuple[Fields, bytes]]:
    while at < len(data):
        (head,) = struct.unpack_from("<I", data, at)
        (body,) = struct.unpack_from("<I", data, at + 4 + head)
        yield unpacked(data[at + 4 : at + 4 + head]), data[at + 8 + head : at + 8 + head + body]
        at += 8 + head + body


CHUNK, CONNECTION = b"\x05", b"\x07"
"""Kinds of records."""


def bag_of(content: list[tuple[Fields, bytes]]) -> bytes:
    """A bag of ROS 1 whose positions are those of its records."""
    places, at = {}, 13
    for fields, body in content:
        places.setdefault(dict(fields).get("op"), at)
        at += len(packed(fields)) + 4 + len(body)
    moved = {
        name: struct.pack("<Q", places.get(op, 0)) for name, op in (("index_pos", CONNECTION), ("chunk_pos", CHUNK))
    }
    data = b"#ROSBAG V2.0\n"
    for fields, body in content:
        data += packed([(name, moved.get(name, value)) for name, value in fields]) + struct.pack("<I", len(body)) + body
    return data


def changed_records(content: list[tuple[Fields, bytes]]) -> list[Mutant[Any]]:
    """Changes to the heads of records, to what is said of topics, and to the order of records."""
    mutants: list[Mutant[Any]] = []
    for number, (fields, body) in enumerate(content):
        before, after = content[:number], content[number + 1 :]
        inner = unpacked(body) if ("op", CONNECTION) in fields else []
        mutants += (replace(m, content=[*before, (m.content, body), *after]) for m in of_parts(fields))
        mutants += (replace(m, content=[*before, (fields, packed(m.content)[4:]), *after]) for m in of_parts(inner))
        mutants.append(Mutant("added", (MARK,), [*before, ([*fields, (MARK, b"7.5")], body), *after]))
    of_records = of_parts([(str(number), record) for number, record in enumerate(content)])
    mutants += (
        replace(m, content=[record for _, record in m.content]) for m in of_records if m.change != "renamed part"
    )
    return mutants


def test_no_change_of_the_records_of_ros_1_is_silent(tmp_path: Path) -> None:
    path = write(tmp_path / "walk.bag")
    whole = path.read_bytes()
    content = list(records(whole, 13))
    assert bag_of(content) == whole
    expected, said = read(path)
    assert not said

    def changed(records: list[tuple[Fields, bytes]]) -> tuple[object, list[str]]:
        path.write_bytes(bag_of(records))
        return read(path)

    mutants = changed_records(content)
    assert len(mutants) > 100
    named = [replace(m, names=(*m.names, path.name, "/cam")) for m in mutants]
    assert silently_other(changed, named, expected, InputError) == []


Message = list[tuple[int, int, Any]]
"""Numbers, wire types and values of the fields of a message of protobuf."""


def varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def protobuf(message: Message) -> bytes:
    parts = []
    for number, kind, value in message:
        data = varint(value) if kind == 0 else value if kind in (1, 5) else varint(len(value)) + value
        parts.append(varint(number << 3 | kind) + data)
    return b"".join(parts)


def doubles(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def descriptor(name: str, fields: dict[str, int]) -> bytes:
    """A file of descriptors, as MCAP has it as the schema of a message."""
    listed: Message = [(2, 2, protobuf([(1, 2, key.encode()), (3, 0, number)])) for key, number in fields.items()]
    message = protobuf([(1, 2, name.encode()), *listed])
    return protobuf([(1, 2, protobuf([(2, 2, b"foxglove"), (4, 2, message)]))])


NUMBERS = {
    "CompressedImage": {"timestamp": 1, "data": 2, "format": 3, "frame_id": 4},
    "RawImage": {"timestamp": 1, "width": 2, "height": 3, "encoding": 4, "step": 5, "data": 6, "frame_id": 7},
    "CameraCalibration": {
        **{"timestamp": 1, "width": 2, "height": 3, "distortion_model": 4, "D": 5, "K": 6, "R": 7, "P": 8},
        "frame_id": 9,
    },
}
STAMP = protobuf([(1, 0, 5), (2, 0, 250)])
IMAGES: dict[str, Message] = {
    "CompressedImage": [
        (1, 2, STAMP), (2, 2, cv2.imencode(".png", picture(1)[..., ::-1])[1].tobytes()), (3, 2, b"png"), (4, 2, b"c"),
    ],
    "RawImage": [
        (1, 2, STAMP), (2, 5, struct.pack("<I", WIDTH)), (3, 5, struct.pack("<I", HEIGHT)), (4, 2, b"rgb8"),
        (5, 5, struct.pack("<I", 3 * WIDTH)), (6, 2, picture(1).tobytes()), (7, 2, b"c"),
    ],
}  # fmt: skip
CAMERA: Message = [
    *(
        (1, 2, STAMP),
        (2, 5, struct.pack("<I", WIDTH)),
        (3, 5, struct.pack("<I", HEIGHT)),
        (4, 2, b"rational_polynomial"),
    ),
    *((5, 2, doubles(0.01, 0, 0, 0, 0, 0, 0, 0)), (6, 2, doubles(70, 0, 31.5, 0, 70, 23.5, 0, 0, 1))),
    *((7, 2, doubles(*np.eye(3).ravel())), (8, 2, doubles(*np.eye(3, 4).ravel())), (9, 2, b"c")),
]


Written = tuple[Message, Message, dict[str, dict[str, int]]]
"""Messages of an image and of its camera, and the numbers of fields in the schemas."""


def read_protobuf(path: Path, kind: str, written: Written) -> tuple[object, list[str]]:
    image, camera, numbers = written
    writing = pytest.importorskip("mcap.writer")
    with path.open("wb") as file:
        writer = writing.Writer(file)
        writer.start(profile="")
        for name, message in ((kind, image), ("CameraCalibration", camera)):
            schema = writer.register_schema(f"foxglove.{name}", "protobuf", descriptor(name, numbers[name]))
            topic = "/camera_info" if name == "CameraCalibration" else "/image"
            channel = writer.register_channel(topic, "protobuf", schema)
            for number in range(2):
                stamped = [
                    (n, k, v.replace(STAMP, protobuf([(1, 0, 5 + number)])) if k == 2 else v) for n, k, v in message
                ]
                writer.add_message(channel, 10**9 * (5 + number), protobuf(stamped), 10**9 * (5 + number))
        writer.finish()
    return read(path)


def changed_message(message: Message) -> Iterator[Mutant[Message]]:
    for at, (number, kind, value) in enumerate(message):
        before, after = message[:at], message[at + 1 :]
        yield Mutant("renumbered", (str(number),), [*before, (14, kind, value), *after])
        yield Mutant("removed", (str(number),), [*before, *after])
        yield Mutant("moved to the end", (str(number),), [*before, *after, message[at]])
        yield Mutant("repeated", (str(number),), [*message, message[at]])
        yield Mutant("added after", (str(number),), [*before, message[at], (15, 0, 7), *after])
        yield Mutant("of another kind", (str(number),), [*before, (number, 0, 3), *after])


@pytest.mark.parametrize("kind", ["CompressedImage", "RawImage"])
def test_no_change_of_a_message_in_protobuf_is_silent(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.mcap"
    expected, said = read_protobuf(path, kind, (IMAGES[kind], CAMERA, NUMBERS))
    assert not said
    of_image = [replace(m, content=(m.content, CAMERA, NUMBERS)) for m in changed_message(IMAGES[kind])]
    cameras = changed_message(CAMERA) if kind == "RawImage" else ()
    of_camera = [replace(m, content=(IMAGES[kind], m.content, NUMBERS)) for m in cameras]
    of_schema = [
        replace(m, content=(IMAGES[kind], CAMERA, {**NUMBERS, name: dict(m.content)}))
        for name in (kind, "CameraCalibration")
        for m in of_parts([*NUMBERS[name].items()])
    ]
    names = ("a.mcap", "/image", "distortion_model")
    mutants = [replace(m, names=(*m.names, *names)) for m in (*of_image, *of_camera, *of_schema)]
    assert silently_other(lambda m: read_protobuf(path, kind, m), mutants, expected, InputError) == []
