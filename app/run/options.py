"""What is asked of a run: one set of options, from the command line, a batch, the web page or a merge."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.slam.mode import MappingChoice
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.configs.errors import ConfigError

if TYPE_CHECKING:
    from stream_recon.app.core.rig import Rig
    from stream_recon.app.result.disk_limit import DiskLimit

DENSE_SIDE = 384
"""Default of the longer side of a dense depth map in pixels."""
DENSE_SIDES = (96, 2048)
"""Bounds of that side."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run and of the stages that follow it. It can be pickled. Raises ConfigError for contradictions."""

    frames: FrameChoice = field(default_factory=FrameChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    mapping: MappingChoice = "full"
    mask_sky: bool = False
    """Exclude the sky; see `Masking`."""
    dense_side: int | None = DENSE_SIDE
    """Longer side of dense depth maps, never more than that of the images; None: none are made."""
    scale_from: str | None = None
    """Source of the metric scale, see `parse_scale_source`."""
    poses: str | None = None
    """Poses that are known already, see `parse_poses`."""
    onto: Path | None = None
    """Result of the same place, in whose world the run goes on and in which the result is put."""
    mesh: bool = True
    splat: bool = False
    """Gaussian splats are trained at the end."""
    keep_map: bool = True
    """A refinement leaves the features by which the place is recognized."""
    keep_depth: Literal["all", "keyframes", "none"] = "all"
    max_disk: str | None = None
    """Size of the result, beyond which old depth files are removed; see `DiskLimit`."""
    reconnect: float = 120.0
    """Seconds to wait for a lost live source."""
    publish: tuple[str, ...] = ()
    """Addresses, see `stream_recon.app.publishing.address`."""
    publish_token: bool = True
    """Other machines need the token of a printed address."""

    def __post_init__(self) -> None:
        if self.dense_side is not None and not DENSE_SIDES[0] <= self.dense_side <= DENSE_SIDES[1]:
            low, high = DENSE_SIDES
            raise ConfigError(f"--dense-side is {self.dense_side}: choose {low} to {high} pixels")
        gives_scale = self.poses is not None and self.poses.strip().startswith("scale:")
        if gives_scale and self.scale_from is not None:
            raise ConfigError("use --poses scale: or --scale-from, not both")
        if self.poses is not None and not gives_scale and self.mapping != "full":
            raise ConfigError("--poses needs a refinement: leave out --mapping, or use scale:FILE")
        if self.onto is None:
            return
        if not self.keep_map:
            raise ConfigError("--onto needs the map: leave out --no-map")
        if self.scale_from is not None or gives_scale:
            raise ConfigError("use --onto or --scale-from, not both: the other result gives the unit")
        if self.mapping != "full":
            raise ConfigError("--onto needs a refinement: leave out --mapping")

    @property
    def known_intrinsics(self) -> bool:
        """Whether the results' focal length is that of a known camera."""
        return self.frames.camera is not None

    @property
    def disk_limit(self) -> "DiskLimit":
        """Raises ConfigError."""
        from stream_recon.app.result.disk_limit import DiskLimit

        return DiskLimit.parse(self.keep_depth, self.max_disk)

    def check_rig(self, rig: "Rig", name: str) -> None:
        """Refuse options that the source ``name``, whose frames are views of a rig, has no use for.

        Raises ConfigError.
        """
        # Metres by the distance of the cameras would not be those of the other result.
        onto = None if rig.is_central else self.onto
        for option, is_given in (("--publish", self.publish), ("--poses", self.poses), ("--onto", onto)):
            if is_given:
                raise ConfigError(f"{option} is for one camera, and {name} is read as {len(rig)} views")
        if self.scale_from is not None and not rig.is_central:
            raise ConfigError("use --rig or --scale-from, not both: the distance of the cameras gives metres")

    def recorded(self, source: str) -> dict[str, Any]:
        """Options that change the result of ``source``, for ``run.json``, where an address has no password."""
        from stream_recon.app.sources.opening import without_password

        # Recorded only where they are used, as in 0.2, so that its results can be resumed.
        frames = dataclasses.asdict(self.frames)
        for name in ("masks", "topic", "rig"):
            if frames[name] is None:
                del frames[name]
        sky = {"mask_sky": True} if self.mask_sky else {}
        return {"source": without_password(source), **frames, "keyframes": self.model.keyframes, **sky}


@dataclass(frozen=True)
class RunJob:
    """A source, the options of its run, and where the result goes."""

    spec: str
    """The source; see `open_source`."""
    options: RunOptions
    folder: Path
    overwrite: bool = False
    resume: bool = False
