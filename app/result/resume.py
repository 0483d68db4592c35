"""What a run that was cut off left in its folder, and whether another run may go on with it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stream_recon.app.core.types import FrameResult, Pair, PreparedFrame
from stream_recon.app.result.cameras import CAMERAS_NAME, Camera, iterate_cameras
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.folder import read_run, result_of
from stream_recon.app.result.run_record import RUN_NAME, RunInfo
from stream_recon.app.result.unit import metres_of
from stream_recon.configs.errors import ConfigError, OutputError

T = TypeVar("T")


@dataclass(frozen=True)
class PartialResult:
    """The frames that a run had finished, in order, and what it said of itself."""

    folder: Path
    record: Mapping[str, Any]
    """The content of its ``run.json``."""
    cameras: tuple[Camera, ...]
    """Each has its depth file."""

    @property
    def last(self) -> Camera:
        """The frame after which the run goes on."""
        return self.cameras[-1]

    def recorded(self, key: str, kind: type[T]) -> T:
        """A value of the record; an empty one where there is none of that kind."""
        value = self.record.get(key)
        return value if isinstance(value, kind) else kind()

    @property
    def keyframes(self) -> int:
        return sum(camera.is_keyframe for camera in self.cameras)

    def last_stream(
        self, scale_frames: int, keyframes: int, *, as_network: bool = False
    ) -> tuple[list[Pair], list[Pair]]:
        """The frames that the network stood on, and the last ``keyframes`` keyframes after them: with their results as
        last known, or as the network had them. Where the record does not say what it stood on, it is to stand on the
        latest ``scale_frames`` keyframes of the last stretch, or other frames where there are too few of these.

        What the network saw is read from the depth files. Raises OutputError.
        """
        segment = [camera for camera in self.cameras if camera.segment == self.last.segment]
        known = [camera for camera in segment if camera.is_keyframe]
        told = self.recorded("reference_frames", list)
        reference_frames = [camera for camera in segment if camera.index in told]
        later: list[Camera] = []
        if reference_frames and len(reference_frames) == len(told):
            later = [camera for camera in known if camera.index > reference_frames[-1].index][-keyframes:]
        else:
            enough = len(known) >= min(scale_frames, len(segment))
            reference_frames = (known if enough else segment)[-scale_frames:]
        return self._pairs(reference_frames, as_network), self._pairs(later, as_network)

    def last_frame(self) -> PreparedFrame:
        """What the network saw of the last one. Raises OutputError."""
        return _frame(result_of(self.folder, self.last))

    def _pairs(self, cameras: Sequence[Camera], as_network: bool) -> list[Pair]:
        results = [result_of(self.folder, camera.as_network if as_network else camera) for camera in cameras]
        return [(_frame(result), result) for result in results]

    def check(self, info: RunInfo) -> None:
        """Raises ConfigError, naming what differs, unless ``info`` is of a run like the one that was cut off."""
        now = json.loads(json.dumps({**dataclasses.asdict(info.preset), "name": ""}))
        before = {**self.record["preset"], "name": ""} if isinstance(self.record["preset"], dict) else None
        differences = [
            name
            for name, differs in (
                ("source", self.record.get("source") != info.source),
                ("weights", self.record.get("weights_sha256") != info.weights_sha256),
                ("preset", before != now),
                ("options", self.record.get("options") != json.loads(json.dumps(info.options))),
            )
            if differs
        ]
        _refuse(self.folder, differences)


def check_choice(folder: Path, record: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError, naming what differs, unless the result with that ``run.json`` is of such a run."""
    now = {"source": source, "options": json.loads(json.dumps(options))}
    _refuse(folder, [name for name, value in now.items() if record.get(name) != value])


def _refuse(folder: Path, differences: list[str]) -> None:
    if differences:
        raise ConfigError(
            f"{folder} was made with other {', '.join(differences)}: give the same ones to go on with it, or "
            "--overwrite instead of --resume"
        )


def _frame(result: FrameResult) -> PreparedFrame:
    return PreparedFrame(result.index, result.timestamp, result.rgb, result.transform, segment=result.segment)


def whole_record(folder: Path) -> Mapping[str, Any] | None:
    """The ``run.json`` of a result that has all its frames; None where there is none such. Raises OutputError."""
    if not (folder / RUN_NAME).exists():
        return None
    record = read_run(folder)
    return None if record["interrupted"] else record


def read_unfinished(folder: Path) -> PartialResult | None:
    """What a run left there that was killed or interrupted; None where it had no result yet, or nothing is there.

    Frames count as finished up to the first one that cannot be read whole.

    Raises:
        OutputError: the folder holds something else, or a result that is complete.
    """
    if not (folder / RUN_NAME).exists():
        return None
    record = read_run(folder)
    if not record["interrupted"]:
        raise OutputError(f"{folder} is complete: there is nothing to go on with")
    counts = record.get("frames")
    if isinstance(counts, dict) and counts.get("without_depth"):
        raise OutputError(
            f"{folder} cannot be gone on with: its older depth files were not kept (--keep-depth, --max-disk)"
        )
    cameras: list[Camera] = []
    # What was brought to metres meanwhile goes on in its own unit.
    metres = metres_of(record)
    own = None if metres is None else metres.T_metric_own.inverse()
    try:
        for camera in iterate_cameras(folder / CAMERAS_NAME):
            if not depth_path(folder, camera.index).is_file():
                break
            cameras.append(camera if own is None else camera.moved(own))
    except OutputError:
        # Torn by a machine that went down; what comes before it is whole.
        if not cameras and any((folder / DEPTH_FOLDER).glob("*.npz")):
            raise
    return PartialResult(folder, record, tuple(cameras)) if cameras else None
