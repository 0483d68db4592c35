"""Limits of the evidence for a result, see `verdict`, and how it is weighed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VerdictConfig:
    """Limits that were set on one half of a set of results of known error and checked on the other half."""

    focal_parts: int = 6
    """Parts of a video whose focal lengths are compared."""
    contradicted: float = 0.65
    """Share of the image that held-out matches contradict. Nothing has verified these matches, so that right results of
    hand-held phones have up to 0.6."""
    depth_disagrees: float = 0.15
    """Share of the image on whose depth neighbouring keyframes disagree."""
    depth_error: float = 0.095
    """Median log error of depth at triangulated points."""
    difference: float = 0.03
    """Difference of two ways to find the path, over its length. Right results had at most 0.028. On generated videos
    it was at most 0.016 where neither of both was better, 0.037 to 0.1 where the map was wrong."""
    same: float = 0.01
    """The same, up to which the path is confirmed where points kept aside fit both ways."""
    refuted: float = 0.9
    """Disagreement of matches kept aside with the network that refutes it if the refined path halves it. With moving
    things it was at most 0.77."""
    explained: float = 0.3
    """Ratio of what epipolar lines contradict after refinement to that before, up to which the network is refuted, too:
    0.14 to 0.26 on drone photographs, 0.35 and more beside moving things."""
    focal_ratio: float = 1.05
    """`focal_change` that means a zoom. The network's focal lengths scatter by up to 1.42 where the view changes, but
    not steadily."""
    focal_steadiness: float = 0.95
    """Its steadiness; right results had at most 0.91."""
    parallax_deg: float = 0.3
    """Median angle under which points are seen, below which a result is doubtful."""
    turned_deg: float = 0.8
    """The same, below which a camera that only turned is the cause of other findings; 0.56 where one did."""
    lost: float = 0.1
    """Share of frames that were damaged or blank."""
    inconsistent: float = 0.15
    """Share of frames of low tracking quality."""
    confirmed: float = 0.005
    """Share of the pixels that stereo confirms; in a right walk through snow it was 0.02."""
    splats_psnr: float = 13.0
    """PSNR in dB of held-out images, drawn from splats, below which they show another scene. Right results had 16 to
    35."""
    min_keyframes: int = 3
    """Keyframes that can be checked."""
    short: int = 12
    """Keyframes of a short video, which may not tell map and network apart although both are right: of the sample's
    first 12 and 16 frames, 8 and 10 keyframes, none did."""
    agrees: float = 0.3
    """Share of the image that held-out matches may contradict in an unsure result. The sample has 0.14."""
    spoilt: float = 0.3
    """Share of dark, blurred or bare pictures from which they are why frames cannot be confirmed."""
    still: float = 0.8
    """Share of the pictures in which the camera stands where it began, from which it has not moved."""
    min_features: int = 200
    """Features of a keyframe, of 1,000 that are sought, below which there is too little to see."""
    overlapping: float = 0.5
    """Share of the pairs of keyframes with matches below which pictures are too far apart."""
    unconfirmed: float = 0.05
    """Share of the frames that refinement may leave as they were in a good result; one always may."""
    failed: int = 2
    """Number of independent findings from which a result has failed."""
    max_reasons: int = 2
    """Findings that a verdict names."""


DEFAULT_VERDICT = VerdictConfig()
