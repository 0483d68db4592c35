"""What geometry does with the network's results; imports nothing heavy before it is asked to."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream_recon.app.mapping.stream.stage import StreamStage

MappingChoice = Literal["full", "stream", "off"]
"""``stream``: poses are corrected while frames come in; ``full``: that, and a finished file's result is refined."""


def stream_stage(
    mapping: MappingChoice, together: int, *, live: bool = False, known_lens: bool = False
) -> "StreamStage | None":
    """The stage for a run, made anew for each; None without geometry.

    Args:
        together: so many first results come from the network at once.
        live: whether the source does not wait.
        known_lens: whether the focal length is right that results come with.
    """
    if mapping == "off":
        return None
    from stream_recon.app.mapping.stream.stage import StreamStage

    return StreamStage(together=together, live=live, known_lens=known_lens)
