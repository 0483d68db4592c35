"""The back end of a run: SLAM by the options, in the world of another result where they name one."""

from typing import TYPE_CHECKING, TypeAlias

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.core.worker import may_start_processes
from stream_recon.app.result.resume import PartialResult
from stream_recon.app.run.options import RunOptions
from stream_recon.app.slam.mode import make_back_end

if TYPE_CHECKING:
    from stream_recon.app.run.live_onto import OntoBackEnd
    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.map import MapState
    from stream_recon.app.slam.online.process import ProcessBackEnd

    RunBackEnd: TypeAlias = OnlineBackEnd | ProcessBackEnd | OntoBackEnd

PROCESS_CORES, PROCESS_CORES_BESIDE_GPU = 2, 4
"""CPU cores from which the back end runs in processes of its own: in a thread it and the network wait for Python's
lock. A GPU's network is delayed by little else than lack of cores."""
PROCESS_FRAMES = 48
"""Frames that are worth the start of the processes, which takes two seconds of a core."""


def run_back_end(
    options: RunOptions,
    engine: FrameEngine,
    partial: PartialResult | None,
    *,
    live: bool,
    known_intrinsics: bool,
    frames: int | None,
) -> "RunBackEnd | None":
    """The back end of a run of ``engine``; None where the options ask for none.

    Args:
        partial: the interrupted result that the run continues.
        live: the source does not wait.
        known_intrinsics: the results' focal length is exact.
        frames: number of them; None: it is not known.
    """
    back_end = make_back_end(
        options.mapping,
        # A resumed run gets single results from the start, in the coordinate frame of the earlier ones.
        1 if partial is not None else engine.preset.stream.scale_frames,
        live=live,
        known_intrinsics=known_intrinsics,
        map_state=_map_state(partial) if partial is not None else None,
        separate_process=may_start_processes()
        and usable_cores() >= (PROCESS_CORES if engine.device == "cpu" else PROCESS_CORES_BESIDE_GPU)
        and (frames is None or frames >= PROCESS_FRAMES),
    )
    if options.onto is None or back_end is None:
        return back_end
    from stream_recon.app.localization.localize import LocalizationMap
    from stream_recon.app.run.live_onto import OntoBackEnd

    return OntoBackEnd(
        back_end,
        LocalizationMap.open(options.onto),
        live=live,
        known_intrinsics=known_intrinsics,
        earlier=() if partial is None else partial.cameras,
    )


def _map_state(partial: PartialResult) -> "MapState":
    """State of the map at the last finished frame."""
    from stream_recon.app.slam.online.map import MapState

    last = partial.last
    T_network = last.as_network.T_world_camera
    return MapState(last.T_world_camera, T_network, last.map_scale, last.intrinsics.fx, last.segment)
