"""A web client without a browser: speaks viser's protocol, keeps the scene and panel it is sent, uses controls."""

import html
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import viser
import zstandard
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.viewer.viewer import Viewer

PROTOCOL = f"viser-v{viser.__version__}"
CAMERA = {
    "type": "ViewerCameraMessage", "wxyz": [1, 0, 0, 0], "position": [0, 0, 0], "fov": 1.0, "near": 0.01, "far": 1000,
    "image_height": 600, "image_width": 800, "look_at": [0, 0, 1], "up_direction": [0, -1, 0],
}  # fmt: skip


class WebClient:
    """One connection. `sync` waits until everything sent so far has arrived."""

    def __init__(self, viewer: Viewer) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        """Properties, wxyz and position of the scene nodes of all pages, by name."""
        self.own: dict[str, dict[str, Any]] = {}
        """The same of this page's nodes, which stand for those of all pages of the same name."""
        self.sent: Counter[str] = Counter()
        """Number of times that a node of all pages was created, by name."""
        self.camera: dict[str, NDArray[np.float64]] = {}
        """Position, look_at and up direction that the server set last."""
        self.files: list[tuple[str, bytes]] = []
        """Names and contents of downloads."""
        self.notes: list[str] = []
        """Titles and texts of notifications."""
        self._viewer = viewer
        self._controls: dict[str, dict[str, Any]] = {}
        self._marks = 0
        self._socket = connect(
            f"ws://127.0.0.1:{viewer.port}",
            subprotocols=[PROTOCOL],
            compression=None,
            max_size=None,  # type: ignore[list-item]
        )
        self.send(CAMERA)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def __enter__(self) -> "WebClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._thread.join()

    @property
    def status(self) -> str:
        return self._text(0)

    @property
    def counts(self) -> str:
        """The line that says what the page shows."""
        return self._text(2)

    def _text(self, order: int) -> str:
        found = [c for c in list(self._controls.values()) if "content" in c and c["order"] == order]
        return html.unescape(re.sub(r"<[^>]*>", "", str(found[0]["content"]))) if found else ""

    def control(self, label: str) -> Mapping[str, Any]:
        """Properties and value of the control or folder with a label."""
        return next(c for c in list(self._controls.values()) if c.get("label") == label)

    def use(self, label: str, value: object) -> None:
        """Use a control as a user does."""
        self.send({"type": "GuiUpdateMessage", "uuid": self.control(label)["uuid"], "updates": {"value": value}})

    @property
    def verdict(self) -> str:
        """HTML text of the verdict."""
        return next(str(c["content"]) for c in list(self._controls.values()) if "content" in c and c["order"] == 1)

    def point_at(self, origin: Any, target: Any) -> None:
        """Click on the scene where the ray from ``origin`` to ``target`` is seen, and wait for the outcome."""
        direction = np.asarray(target, np.float64) - np.asarray(origin, np.float64)
        ray = {"ray_origin": [float(v) for v in origin], "ray_direction": [float(v) for v in direction]}
        click = {"type": "ScenePointerMessage", "event_type": "click", "screen_pos": [[0.5, 0.5]], "modifier": None}
        self.send({**click, **ray})
        time.sleep(0.1)
        self.sync()

    @property
    def html(self) -> str:
        """HTML texts of the panel."""
        controls = list(self._controls.values())
        return "\n".join(str(c["content"]) for c in controls if "content" in c and c.get("visible", True))

    @property
    def cut(self) -> dict[str, Any]:
        """What the page is told to hide: ``planes`` and ``hide``."""
        found = re.search(r'data-stream-recon-cut="([^"]*)"', self.html)
        assert found is not None
        return dict(json.loads(html.unescape(found.group(1))))

    def report(self, position: Any) -> None:
        """Report the page's camera, as after a movement."""
        self.send({**CAMERA, "position": [float(value) for value in position]})

    def set(self, label: str, value: object) -> None:
        """Use a control, and wait for the outcome."""
        self.use(label, value)
        time.sleep(0.1)  # the server reports no receipt
        self.sync()

    def click(self, label: str) -> None:
        self.set(label, True)

    def sync(self) -> None:
        """Wait until the viewer has processed what was added, and the client has received the outcome."""
        assert self._viewer.flush()
        self._marks += 1
        mark = f"mark {self._marks} of {id(self)}."
        self._viewer.status(mark)
        assert self._viewer.flush()
        self.wait_for(lambda: self.status.startswith(mark))
        time.sleep(0.1)  # messages for this page alone come by another queue

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60  # a busy machine is slow, and what comes ends the wait
        while not condition():
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.01)

    def points(self, name: str) -> NDArray[np.float64]:
        """The points [N, 3] of a node, in the world."""
        node = self.own.get(name) or self.nodes[name]
        w, x, y, z = node.get("wxyz", (1, 0, 0, 0))
        xyz = node["scale"] * node["points"].reshape(-1, 3).astype(np.float64)
        return np.asarray(xyz @ rotation_matrix(np.array([x, y, z, w])).T + node.get("position", 0))

    def names(self, prefix: str) -> list[str]:
        """Names of nodes, in order of their frames."""
        names = (n for n, node in list(self.nodes.items()) if n.startswith(prefix) and not node["is_frame"])
        return sorted(names, key=lambda n: (len(n), n))

    def visible(self, prefix: str) -> list[str]:
        """Names of nodes that this page shows, its own included."""
        own = [n for n, node in list(self.own.items()) if n.startswith(prefix) and not node["is_frame"]]
        return sorted({n for n in [*self.names(prefix), *own] if not self._is_hidden(n)}, key=lambda n: (len(n), n))

    def _is_hidden(self, name: str) -> bool:
        parts = name.split("/")
        above = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        return any(self.own.get(n, {}).get("visible") is False for n in above)

    def visible_cloud(self, prefix: str = "/points/") -> NDArray[np.float64]:
        """All points that this page shows, in the world."""
        return np.concatenate([np.zeros((0, 3)), *(self.points(name) for name in self.visible(prefix))])

    def cloud(self, prefix: str = "/points/") -> NDArray[np.float64]:
        """All points of nodes with a prefix, in the world."""
        return np.concatenate([np.zeros((0, 3)), *(self.points(name) for name in self.names(prefix))])

    def send(self, message: Mapping[str, object]) -> None:
        self._socket.send(msgspec.msgpack.encode(message))

    def _receive(self) -> None:
        try:
            for data in self._socket:
                assert isinstance(data, bytes)
                for message in _decoded(data):
                    self._take(message)
        except ConnectionClosed:
            pass

    def _take(self, message: dict[str, Any]) -> None:
        kind, name = message["type"], message.get("name", "")
        nodes = self.own if message.get("owner") else self.nodes
        if kind == "RemoveSceneNodeMessage":
            nodes.pop(name, None)
        elif kind == "SetPositionMessage" and name in nodes:
            nodes[name]["position"] = np.array(message["position"])
        elif kind == "SetOrientationMessage" and name in nodes:
            nodes[name]["wxyz"] = np.array(message["wxyz"])
        elif kind == "SetSceneNodeVisibilityMessage" and name in nodes:
            nodes[name]["visible"] = message["visible"]
        elif kind == "SceneNodeUpdateMessage" and name in nodes:
            nodes[name] |= message["updates"]
        elif message.get("initial"):  # the first camera of all pages
            pass
        elif kind in ("SetCameraPositionMessage", "SetCameraLookAtMessage", "SetCameraUpDirectionMessage"):
            key = {"P": "position", "L": "look_at", "U": "up"}[kind[9]]
            self.camera[key] = np.array(message.get("position") or message.get("look_at"))
        elif kind == "FileTransferStartDownload":
            self.files.append((message["filename"], b""))
        elif kind == "FileTransferPart":
            name, content = self.files[-1]
            self.files[-1] = name, content + bytes(message["content"])
        elif kind == "NotificationShowMessage":
            self.notes.append(f"{message['props']['title']}: {message['props']['body']}")
        elif kind == "GuiUpdateMessage":
            self._controls[message["uuid"]] |= message["updates"]
        elif kind.startswith("Gui") and "props" in message:
            rest = {"value": message.get("value"), "uuid": message["uuid"]}
            self._controls[message["uuid"]] = {**message["props"], **rest}
        elif "props" in message:
            nodes[name] = {**message["props"], "is_frame": kind == "FrameMessage"}
            self.sent[name] += nodes is self.nodes


def _decoded(data: bytes) -> Iterator[dict[str, Any]]:
    """Messages of a frame: sizes, compressed msgpack, then arrays at multiples of 8 bytes."""
    size = int.from_bytes(data[8:16], "little")
    content = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data[16 : 16 + size]))
    arrays, offset = [], 16 + size
    for length in content["binaryBufferLengths"]:
        offset = -(-offset // 8) * 8
        arrays.append(data[offset : offset + length])
        offset += length

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            if "__binary_index" in value:
                return np.frombuffer(arrays[value["__binary_index"]], value["dtype"])
            return {key: filled(item) for key, item in value.items()}
        return value

    for message in content["messages"]:
        yield filled(message)


@contextmanager
def client_of(viewer: Viewer) -> Iterator[WebClient]:
    """A connected client that has received the present state."""
    with WebClient(viewer) as client:
        client.wait_for(lambda: client.counts != "")
        client.sync()
        yield client
