"""What the program needs of an engine. Nothing here knows a network."""

from collections.abc import Sequence
from typing import Protocol

from stream_recon.app.core.types import Frame, FrameResult, OverlapError, Pair, PreparedFrame
from stream_recon.configs.schema import Preset


class FrameEngine(Protocol):
    """Frames in, results out, one stream at a time; `Engine` is the one that ships."""

    threads: int
    """Threads of a CPU that the network works with; 0 where it does not work on one. May be set between two frames."""

    weights_sha256: str
    """Set by a worker whose weights another process hashed."""

    @property
    def preset(self) -> Preset: ...

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def cache(self) -> str:
        """What the frames' keys and values are kept in; see `RunInfo`."""

    @property
    def attention(self) -> str: ...

    @property
    def submaps(self) -> int:
        """How many the run has been so far."""

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Numbers of the scale frames of the stream under way; () where none has begun."""

    def reset(self) -> None:
        """Forget the frames; the next one begins another run."""

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Called by another thread than all else, some frames ahead of ``push``."""

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]: ...

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        """Before the first frame: go on after frames of an earlier run, in its world.

        Args:
            first: what the stream stands on; ``later``: keyframes after these, as far as they are remembered.
        """

    def finish(self) -> Sequence[FrameResult]: ...
