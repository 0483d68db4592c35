"""Choice of the SLAM back end. Heavy modules are imported only when a back end is made."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.config import OnlineConfig
    from stream_recon.app.slam.online.map import MapState
    from stream_recon.app.slam.online.process import ProcessBackEnd


MappingChoice = Literal["full", "stream", "off"]
"""``off``: the network's poses; ``stream``: corrected online; ``full``: a file's result is also refined at the end."""


def make_back_end(
    mapping: MappingChoice,
    prefill: int,
    *,
    live: bool = False,
    known_intrinsics: bool = False,
    map_state: "MapState | None" = None,
    separate_process: bool = False,
    config: "OnlineConfig | None" = None,
) -> "OnlineBackEnd | ProcessBackEnd | None":
    """A new back end for one run; None if ``mapping`` is ``off``.

    Args:
        prefill: number of first results that the network returns at once.
        live: the source does not wait for the back end.
        known_intrinsics: the results' focal length is exact.
        map_state: end of an earlier run's map that this run continues.
        config: None: the default.
        separate_process: run in processes of its own, whose results are the same.
    """
    if mapping == "off":
        return None
    from stream_recon.app.slam.online.config import DEFAULT_ONLINE

    config = config or DEFAULT_ONLINE
    if separate_process:
        from stream_recon.app.slam.online.process import ProcessBackEnd

        return ProcessBackEnd(
            prefill=prefill, live=live, known_intrinsics=known_intrinsics, map_state=map_state, config=config
        )
    from stream_recon.app.slam.online.back_end import OnlineBackEnd

    return OnlineBackEnd(
        prefill=prefill, live=live, known_intrinsics=known_intrinsics, map_state=map_state, config=config
    )
