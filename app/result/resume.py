"""Reader of an interrupted result, and the check that another run may resume it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stream_recon.app.core.types import FrameResult, Pair, PreparedFrame
from stream_recon.app.result.cameras import CAMERAS_NAME, FrameCamera, iterate_cameras
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path, read_depth
from stream_recon.app.result.folder import read_run, result_of
from stream_recon.app.result.metric_scale import metric_scale_of
from stream_recon.app.result.run_record import RUN_NAME, RunInfo
from stream_recon.configs.errors import ConfigError, OutputError

T = TypeVar("T")


@dataclass(frozen=True)
class PartialResult:
    """The finished frames of an interrupted run, in order, and its ``run.json``."""

    folder: Path
    record: Mapping[str, Any]
    """The content of ``run.json``."""
    cameras: tuple[FrameCamera, ...]
    """Cameras in the reconstruction's own unit; each has its depth file."""
    is_torn: bool = False
    """Whether a damaged depth file comes after these frames."""

    @property
    def last(self) -> FrameCamera:
        """The last finished frame."""
        return self.cameras[-1]

    def recorded_value(self, key: str, kind: type[T]) -> T:
        """A value of the record; an empty one of type ``kind`` where it is missing or of another type."""
        value = self.record.get(key)
        return value if isinstance(value, kind) else kind()

    @property
    def keyframes(self) -> int:
        return sum(camera.is_keyframe for camera in self.cameras)

    def last_submap(
        self, scale_frames: int, keyframes: int, *, network_poses: bool = False
    ) -> tuple[list[Pair], list[Pair]]:
        """Scale frames of the last submap, and the last ``keyframes`` keyframes after them, read from depth files.

        Where the record does not name the scale frames, they are the latest ``scale_frames`` keyframes of the last
        segment, or its latest frames if it has too few keyframes. ``network_poses``: give the network's estimates
        instead of the final results. Raises OutputError where a depth file is damaged.
        """
        segment = [camera for camera in self.cameras if camera.segment == self.last.segment]
        known = [camera for camera in segment if camera.is_keyframe]
        recorded = self.recorded_value("reference_frames", list)
        reference_frames = [camera for camera in segment if camera.index in recorded]
        later: list[FrameCamera] = []
        if reference_frames and len(reference_frames) == len(recorded):
            later = [camera for camera in known if camera.index > reference_frames[-1].index][-keyframes:]
        else:
            enough = len(known) >= min(scale_frames, len(segment))
            reference_frames = (known if enough else segment)[-scale_frames:]
        return self._pairs(reference_frames, network_poses), self._pairs(later, network_poses)

    def last_frame(self) -> PreparedFrame:
        """The network's input of the last finished frame. Raises OutputError."""
        return _frame(result_of(self.folder, self.last))

    def _pairs(self, cameras: Sequence[FrameCamera], network_poses: bool) -> list[Pair]:
        results = [result_of(self.folder, camera.as_network if network_poses else camera) for camera in cameras]
        return [(_frame(result), result) for result in results]

    def check(self, info: RunInfo) -> None:
        """Raises ConfigError, which names the differences, unless ``info`` has the settings of the interrupted run."""
        preset = json.loads(json.dumps({**dataclasses.asdict(info.preset), "name": ""}))
        recorded = {**self.record["preset"], "name": ""} if isinstance(self.record["preset"], dict) else None
        differences = _changes(self.record, info.source, info.options)
        differences += ["weights"] if self.record.get("weights_sha256") != info.weights_sha256 else []
        _refuse(self.folder, [*differences, *(["preset"] if recorded != preset else [])])


def check_choice(folder: Path, record: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError, which names the differences, unless a ``run.json`` has this source and these options."""
    _refuse(folder, _changes(record, source, options))


def _changes(record: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> list[str]:
    """Options, and the source, that differ from those in a ``run.json``, each with its value there."""
    then, now = record.get("options"), json.loads(json.dumps(options))
    if not isinstance(then, dict):
        return ["options"]
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    if not names and record.get("source") != source:
        return [f"source ({record.get('source')} there)"]
    return [f"{name} ({'none' if then.get(name) is None else then[name]} there)" for name in names]


def _refuse(folder: Path, differences: list[str]) -> None:
    if differences:
        raise ConfigError(
            f"{folder} was made with other {', '.join(differences)}: give the same ones to resume it, or --overwrite "
            "instead of --resume"
        )


def _frame(result: FrameResult) -> PreparedFrame:
    return PreparedFrame(result.index, result.timestamp, result.rgb, result.transform, segment=result.segment)


def finished_record(folder: Path) -> Mapping[str, Any] | None:
    """The ``run.json`` of a complete result; None without one, or where it was interrupted. Raises OutputError."""
    if not (folder / RUN_NAME).exists():
        return None
    record = read_run(folder)
    return None if record["interrupted"] else record


def _has_depth(folder: Path, camera: FrameCamera) -> bool:
    try:
        read_depth(depth_path(folder, camera.index))
    except OutputError:
        return False
    return True


def read_partial_result(folder: Path) -> PartialResult | None:
    """The frames of a killed or interrupted run; None where it finished no frame, or there is no result.

    Frames count as finished up to the first one without a readable camera and a readable depth file: a power cut tears
    the last ones. Raises OutputError where the folder holds something else, a complete result, or one without all depth
    files.
    """
    if not (folder / RUN_NAME).exists():
        return None
    record = read_run(folder)
    if not record["interrupted"]:
        raise OutputError(f"{folder} is complete: there is nothing to resume")
    counts = record.get("frames")
    if isinstance(counts, dict) and counts.get("without_depth"):
        raise OutputError(f"{folder} cannot be resumed: its older depth files were not kept (--keep-depth, --max-disk)")
    cameras: list[FrameCamera] = []
    is_torn = False
    if not (folder / CAMERAS_NAME).exists():
        return None  # depth without poses is of no use
    # A run continues in the reconstruction's own unit, also after a metric scale was applied.
    metric_scale = metric_scale_of(record)
    own = None if metric_scale is None else metric_scale.T_metric_own.inverse()
    try:
        for camera in iterate_cameras(folder / CAMERAS_NAME):
            if not _has_depth(folder, camera):
                is_torn = depth_path(folder, camera.index).exists()
                break
            cameras.append(camera if own is None else camera.moved(own))
    except OutputError:
        # Torn when the machine went down: the lines before are complete.
        if not cameras and any((folder / DEPTH_FOLDER).glob("*.npz")):
            raise
    return PartialResult(folder, record, tuple(cameras), is_torn) if cameras else None
