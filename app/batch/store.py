"""Where the results of a batch go."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stream_recon.app.batch.lock import output_lock
from stream_recon.app.batch.manifest import Check, check_manifest
from stream_recon.app.batch.scene_run import clear_work, guarded, reconstruct_unit
from stream_recon.app.batch.stitch import clear_windows, stitch
from stream_recon.app.batch.units import Model, Outcome, Unit
from stream_recon.app.engine_protocol import FrameEngine
from stream_recon.app.output.depth import DEPTH_FOLDER
from stream_recon.app.output.files import replace_file


class Store(Protocol):
    """A result folder for each unit by its name, and a few files of the batch. Is sent to workers."""

    @property
    def of_one_process(self) -> bool:
        """Whether other processes see nothing of what is written."""

    def place(self, name: str) -> str:
        """Where a file or folder is, for people."""

    def lock(self) -> AbstractContextManager[None]:
        """Keep other batches out for the time of the block. Raises OutputError where one is at work."""

    def check(self, name: str, key: Mapping[str, Any]) -> Check:
        """See `check_manifest`."""

    def reconstruct(self, engine: FrameEngine, unit: Unit, on_frames: Callable[[int], None]) -> Outcome:
        """Do a unit; whatever goes wrong with it is the outcome's reason.

        ``on_frames`` is called with the number of frames written, from another thread.
        """

    def stitch(self, unit: Unit, windows: Sequence[Unit], model: Model) -> Outcome:
        """Join the finished windows of a unit; see `stitch.stitch`."""

    def clear_windows(self, name: str) -> None:
        """Remove the windows of the unit of that name. Raises OutputError."""

    def clear_work(self) -> None:
        """Remove what killed workers left. Only while locked. Raises OutputError."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the batch's own. Raises OutputError."""

    def middle_frame(self, name: str) -> bytes | None:
        """The depth file of a result's middle frame; None if there is none that can be read."""


@dataclass(frozen=True)
class LocalStore:
    """A folder that all workers see under the same path. See `Store`."""

    folder: Path

    @property
    def of_one_process(self) -> bool:
        return False

    def place(self, name: str) -> str:
        return str(self.folder / name)

    def lock(self) -> AbstractContextManager[None]:
        return output_lock(self.folder)

    def check(self, name: str, key: Mapping[str, Any]) -> Check:
        return check_manifest(self.folder / name, key)

    def reconstruct(self, engine: FrameEngine, unit: Unit, on_frames: Callable[[int], None]) -> Outcome:
        return guarded(unit.name, lambda: reconstruct_unit(engine, unit, self.folder, on_frames))

    def stitch(self, unit: Unit, windows: Sequence[Unit], model: Model) -> Outcome:
        return guarded(unit.name, lambda: stitch(unit, windows, self.folder, model))

    def clear_windows(self, name: str) -> None:
        clear_windows(self.folder, name)

    def clear_work(self) -> None:
        clear_work(self.folder)

    def write(self, name: str, data: bytes) -> None:
        replace_file(self.folder / name, lambda file: file.write(data))

    def middle_frame(self, name: str) -> bytes | None:
        frames = sorted((self.folder / name / DEPTH_FOLDER).glob("*.npz"))
        try:
            return frames[len(frames) // 2].read_bytes() if frames else None
        except OSError:
            return None
