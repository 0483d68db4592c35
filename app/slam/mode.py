"""What geometry does with the network's results; imports nothing heavy before it is asked to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.process import ProcessBackEnd


MappingChoice = Literal["full", "stream", "off"]
"""``stream``: poses are corrected while frames come in; ``full``: that, and a finished file's result is refined."""


@dataclass(frozen=True)
class MapState:
    """The last frame of a map that an earlier run made."""

    T_world_camera: "NDArray[np.float64]"  # [4, 4]
    T_network: "NDArray[np.float64]"  # [4, 4], in the network's world
    scale: float
    """Lengths of the map there for each of the network's."""
    focal: float
    """In pixels of the source image."""
    segment: int


def make_back_end(
    mapping: MappingChoice,
    together: int,
    *,
    live: bool = False,
    known_intrinsics: bool = False,
    map_state: MapState | None = None,
    apart: bool = False,
) -> "OnlineBackEnd | ProcessBackEnd | None":
    """The stage for a run, made anew for each; None without geometry.

    Args:
        together: so many first results come from the network at once.
        live: whether the source does not wait.
        known_lens: whether the focal length is right that results come with.
        departure: where another run's map ended, which this one goes on with.
        apart: in a process of its own, which starts by importing the main module again, as `multiprocessing` does.
    """
    if mapping == "off":
        return None
    if apart:
        from stream_recon.app.slam.online.process import ProcessBackEnd

        return ProcessBackEnd(together=together, live=live, known_intrinsics=known_intrinsics, map_state=map_state)
    from stream_recon.app.slam.online.back_end import OnlineBackEnd

    return OnlineBackEnd(together=together, live=live, known_intrinsics=known_intrinsics, map_state=map_state)
