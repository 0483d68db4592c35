"""Tuned numbers of surfaces, a group for each step.

What a value was chosen by stands beside it; ``python scripts/bench mesh OUT`` measures what a change does.
"""

from dataclasses import dataclass, field

from stream_recon.app.core.types import Certainty


@dataclass(frozen=True)
class AgreementConfig:
    """Agreement of unconfirmed depth between frames.

    Without it walls without texture have holes: the mesh of a room covers 89 % of held-out images, with it 93 %, and 62
    and 66 % at the right depth.
    """

    side: int = 64
    """Longer side of the maps that are compared, in pixels: the network's errors are smooth."""
    max_neighbours: int = 12
    spacing: int = 8
    """Pixels between the points that neighbours are chosen by."""
    min_shared: float = 0.1
    """Share of a map's points that a neighbour shows."""
    max_log_ratio: float = 0.15
    """Log ratio of depths of one surface; what differs by more is another one."""
    tolerance: float = 0.01
    """Log ratio that may remain: about half of what fusion spans. Without it the sample's F1 at 2 cm falls by .008."""
    weights: tuple[float, ...] = (0.0, 1.0, 1.0, 6.0)
    """Weight of another frame's pixel by its `Certainty`."""
    own: float = 2.0
    """Weight of the pixel's own depth: with 1 the sample's F1 at 2 cm falls by .003."""
    rounds: int = 3
    window: int = 3
    """Side in pixels of the window in which changes are averaged."""
    staying: float = 4.0
    """Weight in this average of pixels that stay."""

    def __post_init__(self) -> None:
        assert len(self.weights) == len(Certainty)


@dataclass(frozen=True)
class FusionConfig:
    """Fusion of depth maps into TSDF volumes of several resolutions. Tuples by `Certainty` have an entry for each."""

    max_frames: int = 600
    """Frames that are fused: more hardly change the mesh."""
    max_depth_frames: int = 50
    """Frames that the median depth is computed from: more hardly change it."""
    max_kept_views: int = 150
    """Depth maps kept in memory for the question which holes are real."""
    voxel_pixels: tuple[float, float] = (1.5, 2.0)
    """Bounds of the voxel size in widths of a depth pixel at the median depth: the larger one where frames disagree by
    more than the truncation. With 1.5 alone the mesh of a street covers less of its images, with 2.5 a kitchen's is
    less accurate."""
    truncation: tuple[float, float] = (3.0, 6.0)
    """Bounds of the truncation distance in voxels: less leaves gaps and parallel layers where frames disagree, more
    blurs where they agree."""
    noise_factor: float = 4.0
    """The truncation distance in medians of the disagreement of unconfirmed depth: it is much larger in places."""
    noise_pairs: int = 12
    noise_distance: int = 3
    noise_step: int = 5
    """Pairs of frames that are compared, the number of frames between them, and of pixels between the compared ones."""
    bands: tuple[float, ...] = (6.0, 4.8, 2.4, 2.4)
    """Depth behind the surface that a pixel fills, in voxels but at most the truncation, by `Certainty`: more thickens
    edges, less leaves gaps."""
    fades: tuple[float, ...] = (1.0, 1.0, 1.0, 0.0)
    """Share of a pixel's weight that is lost behind the surface up to the band's end, by `Certainty`. What stereo
    confirmed keeps it: where frames differ by some voxels, votes in front of the surface would outweigh those behind,
    and remove it. Without any fade .07 more of the mesh is farther than 5 cm from the sample's surfaces."""
    weights: tuple[float, ...] = (0.0, 0.1, 0.25, 1.0)
    """Weight of a pixel by its `Certainty`: the network's errors are correlated between frames and do not average
    out."""
    usual_missing: float = 0.1
    """What the confidence of good pixels of the network lacks to 1, see `confidence_levels`."""
    min_depths: tuple[float, ...] = (0.0, 0.2, 0.2)
    """Depth from which each volume takes pixels, as a share of its largest one, at most: volumes overlap, so that there
    is no gap between them."""
    min_frames: tuple[int, ...] = (3, 3, 5)
    """Frames that observe a voxel of the surface of each volume, where there are several times as many: in the coarsest
    one a few frames make large false surfaces."""
    max_depth: float = 3.0
    """Largest depth of the finest volume, in median depths: beyond it a pixel is several voxels wide."""
    level_factor: float = 3.0
    """Factor between the voxels, and between the largest depths, of two volumes."""
    away: float = 1.2
    """Distance in voxels from a finer surface from which a coarser one is kept."""
    rings: int = 2
    """Rings of triangles about these that are kept, too, where frames disagree by more than the finest volume spans at
    the median depth: else gaps would be between both."""
    allocation_share: float = 0.15
    """Share of the time that blocks are allocated in, before frames are fused: a volume that would be full is found
    early."""
    max_blocks: int = 50_000
    """Blocks of a volume, about 400 MB; a scene that needs more gets larger voxels."""
    full_factor: float = 1.5
    """Factor of the voxel size where the blocks do not suffice: about half as many are needed."""

    def __post_init__(self) -> None:
        assert len(self.bands) == len(self.fades) == len(self.weights) == len(Certainty)
        assert len(self.min_depths) == len(self.min_frames)


@dataclass(frozen=True)
class VisibilityConfig:
    """What depth maps say of points."""

    behind: float = 1.1
    """Factor of the depth from which a frame sees through a point, more than the error of depth."""
    free_share: float = 0.25
    """Share of the frames that look at a point from which it is free, and of free points from which a hole is real."""
    near: float = 0.1
    """Share of the depth within which a point is on the surface that a frame shows, in addition to the truncation."""
    confirmed_near: float = 0.03
    """The same for what stereo confirmed, which is more accurate."""
    min_confirmed: float = 0.25
    """Share of a small loose part's vertices that stereo confirmed: shreds in three films with trees have less."""
    max_shred: float = 0.015
    """Largest share of the triangles of such a part: larger ones are ground and walls without texture."""


@dataclass(frozen=True)
class HoleConfig:
    """Closing of holes; lengths are in edges of the hole's border."""

    max_small: int = 28
    """Edges of a border that is always closed: a hole of about 7 voxels."""
    max_planar: int = 300
    """Edges of a border that is closed where it lies in a plane, with the surface around it: about 75 voxels wide."""
    max_roughness: float = 1.5
    """RMS distance of a planar border from its plane."""
    min_small_cosine: float = 0.2
    min_planar_cosine: float = 0.8
    """Cosine between the plane's normal and those of the triangles at the border, on average: the outer border of a
    sheet runs the other way round, and its closing surface would face backward."""
    max_around: int = 64
    """Triangles around a vertex of a border."""
    spacing: float = 2.0
    """Spacing of new vertices within a hole."""


@dataclass(frozen=True)
class ViewConfig:
    """Quality of each view of each triangle, and the choice of a few views."""

    max_scored: int = 160
    """Views that are scored, evenly spaced where there are more."""
    max_chosen: int = 80
    """Views that a texture is made of."""
    min_gain: float = 0.002
    """Share of the mesh's area by which another view improves a choice."""
    depth_side: int = 400
    """Longer side in pixels of the depth buffer for occlusions."""
    border: float = 0.01
    """Border of an image that is not used, as a share of its longer side: undistorted images end there."""
    outline: int = 3
    """Side in pixels of the depth buffer's window in which the nearest surface counts: outlines are narrow."""
    tolerance: float = 0.02
    """Share of the depth by which a visible vertex may be behind the depth buffer."""
    in_front: float = 0.08
    """Share of the depth by which a view's depth map may be in front of a visible vertex: more than its noise, less
    than what stands in front and is not in the mesh."""
    min_cosine: float = 0.15
    """Cosine between normal and direction of view: flatter images are stretched."""
    incomplete: float = 0.05
    """Factor of the quality of a view that shows two of a triangle's vertices."""


@dataclass(frozen=True)
class LabelConfig:
    """A view for each triangle, by belief propagation."""

    candidates: int = 8
    """Views that a triangle may take: its best ones."""
    seam_cost: float = 0.3
    """Cost of a seam along an edge of mean length, in units of the best score."""
    iterations: int = 20
    """Iterations of belief propagation: 60 lower the energy by 1 to 3 % more and change 1 to 2 % of the triangles."""
    damping: float = 0.4
    """Share of the last message that is kept, which ends oscillations."""
    forbidden_cost: float = 1e3
    """Cost of a view that does not show the triangle."""
    min_patch: int = 12
    """Triangles of a patch below which it is given to a neighbouring patch where that view shows it."""


@dataclass(frozen=True)
class BlendConfig:
    """Means of the levelled images of all views."""

    level_side: int = 200
    """Longer side in pixels of the picture in which exposure is compared."""
    level_blur: float = 10.0
    """Standard deviation in its pixels of the window that corrections are averaged over: wider than misalignments."""
    max_step: float = 60.0
    """Difference in levels of 255 that is compared: a larger one is something else, not exposure."""
    fade: float = 0.05
    """Share of the window that must be known for a full correction."""
    power: int = 2
    """Power of a view's quality that is its weight in the mean."""


@dataclass(frozen=True)
class AtlasConfig:
    """Images of the texture atlas."""

    max_side: int = 4096
    """Longer side of an image in pixels, which all graphics hardware takes."""
    max_images: int = 3
    """About 15 MB of JPEG. Larger textures are reduced."""
    scale: float = 1.5
    """Pixels of the atlas per pixel of the views, if they suffice: means of several views show more than one."""
    padding: int = 4
    """Pixels around a patch: filters and the smaller levels of a texture read them."""
    jpeg_quality: int = 90
    """As of photographs."""
    fill: float = 0.92
    """Share of the images' area that the packing is expected to use."""


@dataclass(frozen=True)
class TextureConfig:
    """Textures of a mesh from the images of its frames."""

    views: ViewConfig = field(default_factory=ViewConfig)
    labels: LabelConfig = field(default_factory=LabelConfig)
    blend: BlendConfig = field(default_factory=BlendConfig)
    atlas: AtlasConfig = field(default_factory=AtlasConfig)


@dataclass(frozen=True)
class LevelConfig:
    """Search for the direction above which most of the surface is level, or plumb."""

    max_turn_deg: float = 40.0
    """Largest angle to the up direction of the cameras, which is that of their images where none of them turned."""
    spread_deg: float = 8.0
    """Deviation of a floor's normals: rough ground bends by more."""
    plumb: float = 0.3
    """Weight of plumb surfaces, of which there are many in any direction, beside level ones."""
    roll_deg: float = 1.5
    roll_cost: float = 0.05
    """Share of the surface that outweighs cameras which are tilted sideways by ``roll_deg``, as by a hand."""
    samples: int = 3000
    directions: tuple[int, int] = (1500, 100)
    """Triangles and directions that are tried: all within the largest angle, then near the best one."""
    near_deg: float = 2.0


@dataclass(frozen=True)
class MeshConfig:
    """All of a mesh."""

    faces: int = 150_000
    """Triangles of a result's mesh, about: a room in detail, drawn fluently by a laptop."""
    min_part: float = 0.002
    """Size of a connected part as a share of all triangles: smaller ones are floaters."""
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    visibility: VisibilityConfig = field(default_factory=VisibilityConfig)
    holes: HoleConfig = field(default_factory=HoleConfig)
    texture: TextureConfig = field(default_factory=TextureConfig)
    level: LevelConfig = field(default_factory=LevelConfig)


DEFAULT_MESH = MeshConfig()
