"""What the network asks of a memory: the place of a step's frames in the stream, and attention over all visible."""

from typing import Protocol

from torch import Tensor


class Memory(Protocol):
    """One step's view of the past. Shapes: B clips, S frames of this step, P tokens a frame, H heads of D channels.

    A live stream has B = 1 (`FrameCache`); training hands over whole clips (`ClipVisibility`).
    """

    @property
    def times(self) -> Tensor:
        """int64 [B, S]: the count of cached frames before each frame; global attention's time coordinate."""
        ...

    @property
    def is_later_frame(self) -> Tensor:
        """int64 [S]: 0 for the very first frame of the stream, else 1; picks camera token and registers."""
        ...

    @property
    def is_streamed_frame(self) -> Tensor:
        """int64 [S]: 0 for scale frames, else 1; picks the scale token."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Global attention of ``layer``: q, k, v [B, S*P, H, D], special tokens first in a frame -> the same shape."""
        ...

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the camera head: q, k, v [B, S, H, D] -> the same; ``slot`` counts iterations times blocks."""
        ...
