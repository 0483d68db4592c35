"""Writer of small ROS recordings for tests, by the library rosbags."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import quaternion_xyzw

STEP_NS = 50_000_000
BEGIN_NS = 1_700_000_000_000_000_000
TF = "tf2_msgs/msg/TFMessage"


class Bag:
    """Recording of ROS 1 (``name.bag``) or ROS 2 (a folder of any other name, with SQLite or ``mcap`` storage)."""

    def __init__(
        self,
        path: Path,
        *,
        mcap: bool = False,
        stamped: bool = True,
        late_s: dict[int, float] | None = None,
        wrong_s: dict[int, float] | None = None,
    ) -> None:
        """
        Args:
            stamped: False writes zeros as the headers' times.
            late_s: delay of messages by number.
            wrong_s: error of their stamps.
        """
        from rosbags.rosbag1 import Writer as Writer1
        from rosbags.rosbag2 import StoragePlugin
        from rosbags.rosbag2 import Writer as Writer2
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self._stamped, self._late, self._wrong = stamped, late_s or {}, wrong_s or {}
        self.ros1 = path.suffix == ".bag"
        self.store = get_typestore(Stores.ROS1_NOETIC if self.ros1 else Stores.ROS2_HUMBLE)
        if self.ros1:  # its types have none of tf2
            self.store.register(get_types_from_msg("geometry_msgs/TransformStamped[] transforms", TF))
        storage = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
        self._writer: Any = Writer1(path) if self.ros1 else Writer2(path, version=9, storage_plugin=storage)
        self._writer.open()
        self._connections: dict[str, Any] = {}

    def __enter__(self) -> "Bag":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def at(self, later_ns: int) -> "Bag":
        """Messages of number 0 are of this many nanoseconds after the begin."""
        self._late = {0: later_ns * 1e-9}
        return self

    def raw(
        self,
        topic: str,
        number: int,
        image: NDArray[Any],
        encoding: str,
        pad: int = 0,
        big: bool = False,
        frame: str = "camera",
    ) -> None:
        rows = np.ascontiguousarray(image).view(np.uint8).reshape(image.shape[0], -1)
        rows = np.pad(rows, ((0, 0), (0, pad)))
        kind = self.store.types["sensor_msgs/msg/Image"]
        height, width = image.shape[:2]
        message = kind(self.header(number, frame), height, width, encoding, int(big), rows.shape[1], rows.ravel())
        self.write(topic, "sensor_msgs/msg/Image", number, message)

    def jpeg(self, topic: str, number: int, rgb: NDArray[np.uint8]) -> None:
        data = cv2.imencode(".jpg", rgb[..., ::-1])[1].ravel()
        self.compressed(topic, number, data)

    def compressed(self, topic: str, number: int, data: NDArray[np.uint8], form: str = "jpeg") -> None:
        kind = self.store.types["sensor_msgs/msg/CompressedImage"]
        self.write(topic, "sensor_msgs/msg/CompressedImage", number, kind(self.header(number), form, data))

    def camera(
        self,
        topic: str,
        size: tuple[int, int],
        k: list[float],
        d: list[float],
        model: str = "plumb_bob",
        p: list[float] | None = None,
        binning: int = 0,
        roi: tuple[int, int, int, int] = (0, 0, 0, 0),
        number: int = 0,
        frame: str = "camera",
        r: NDArray[Any] | None = None,
    ) -> None:
        """``roi``: left, top, width, height of the images on the sensor."""
        kind, region = (
            self.store.types["sensor_msgs/msg/CameraInfo"],
            self.store.types["sensor_msgs/msg/RegionOfInterest"],
        )
        names = ("D", "K", "R", "P") if self.ros1 else ("d", "k", "r", "p")
        numbers = dict(
            zip(
                names,
                (np.array(d), np.array(k), (np.eye(3) if r is None else r).ravel(), np.array(p or np.zeros(12), float)),
                strict=True,
            )
        )
        message = kind(
            header=self.header(number, frame), height=size[1], width=size[0], distortion_model=model, **numbers,
            binning_x=binning, binning_y=binning, roi=region(roi[0], roi[1], roi[3], roi[2], False),
        )  # fmt: skip
        self.write(topic, "sensor_msgs/msg/CameraInfo", number, message)

    def transforms(self, topic: str, number: int, poses: dict[tuple[str, str], NDArray[Any]]) -> None:
        """A message of tf: poses [4, 4] of frames in their parents, by (parent, frame)."""
        types = {name: self.store.types[f"geometry_msgs/msg/{name}"] for name in ("Vector3", "Quaternion", "Transform")}
        stamped, listed = self.store.types["geometry_msgs/msg/TransformStamped"], []
        for (parent, frame), T in poses.items():
            turn = types["Quaternion"](*quaternion_xyzw(T[:3, :3]).tolist())
            listed.append(
                stamped(self.header(number, parent), frame, types["Transform"](types["Vector3"](*T[:3, 3]), turn))
            )
        self.write(topic, TF, number, self.store.types[TF](listed))

    def header(self, number: int, frame: str = "camera") -> Any:
        stamp = self._time(number) + round(1e9 * self._wrong.get(number, 0.0)) if self._stamped else 0
        time = self.store.types["builtin_interfaces/msg/Time"](stamp // 10**9, stamp % 10**9)
        kind = self.store.types["std_msgs/msg/Header"]
        return kind(number, time, frame) if self.ros1 else kind(time, frame)

    def write(self, topic: str, kind: str, number: int, message: Any) -> None:
        if topic not in self._connections:
            self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self.store)
        serialise = self.store.serialize_ros1 if self.ros1 else self.store.serialize_cdr
        # Messages are written some time after their stamps.
        self._writer.write(self._connections[topic], self._time(number) + 3_000_000, serialise(message, kind))

    def _time(self, number: int) -> int:
        return BEGIN_NS + number * STEP_NS + round(1e9 * self._late.get(number, 0.0))
