"""Interface of an engine, without dependence on a network."""

from collections.abc import Sequence
from typing import Protocol

from stream_recon.app.core.types import Frame, FrameResult, OverlapError, Pair, PreparedFrame
from stream_recon.configs.schema import Preset


class FrameEngine(Protocol):
    """Turns the frames of one stream into results; implemented by `Engine`."""

    threads: int
    """CPU threads of the network; 0 on a GPU. May be set between two frames."""

    weights_sha256: str
    """Hash of the weights; a worker gets it from the process that computed it."""

    @property
    def preset(self) -> Preset: ...

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def cache(self) -> str:
        """Data type of cached keys and values, see `RunInfo`."""

    @property
    def attention(self) -> str: ...

    @property
    def submaps(self) -> int:
        """Number of submaps of the run so far."""

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Frame numbers of the current submap's scale frames; () before the first submap."""

    def reset(self) -> None:
        """Forget all frames; the next one begins a new run."""

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Resize a frame. Called from another thread than the other methods, some frames ahead of ``push``."""

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]: ...

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        """Continue an earlier run in its coordinate frame; called before the first frame.

        Args:
            first: scale frames of the submap with their results.
            later: keyframes after these that the cache remembers.
        """

    def finish(self) -> Sequence[FrameResult]: ...
