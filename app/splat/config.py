"""Tuned numbers of the training of splats, a group for each part. Lengths are in the trainer's unit.

``python scripts/bench splat`` measures what a change does. Those of `ModelConfig` and `DensificationConfig` that name a
paper are its own.
"""

from dataclasses import dataclass, field

from stream_recon.app.core.types import Certainty


@dataclass(frozen=True)
class ShellConfig:
    """Points far behind all others, for what has no depth, such as sky."""

    is_enabled: bool = True
    distance: float = 5.0
    """As a multiple of the scene's radius."""
    max_points: int = 20_000
    min_share: float = 0.01
    """Share of pixels without depth from which there are such points."""


@dataclass(frozen=True)
class ModelConfig:
    """Gaussians to begin with, and the steps of their parameters."""

    opacity: float = 0.5
    """The points lie on surfaces."""
    shell_opacity: float = 0.9
    max_size: float = 0.03
    """Standard deviation as a share of the scene's radius."""
    rates: tuple[tuple[str, float], ...] = (
        ("means", 1.6e-4), ("scales", 5e-3), ("quats", 1e-3), ("opacities", 5e-2), ("sh0", 2.5e-3),
        ("shN", 2.5e-3 / 20),
    )  # fmt: skip
    """Steps as in 3D Gaussian splatting (Kerbl et al. 2023)."""


@dataclass(frozen=True)
class ScheduleConfig:
    """What happens when. Shares are of the training."""

    full_steps: int = 7_000
    """Steps for which the rates are made."""
    max_rate_factor: float = 4.0
    """Factor of rates in a short training, which has as far to move positions and poses."""
    means_decay: float = 0.01
    """Factor of the positions' rate at the end."""
    densify_every: int = 100
    """Steps between two densifications."""
    densify_from: float = 0.05
    densify_until: float = 0.7
    prune_every: int = 500
    """Steps between two searches for Gaussians in free space."""
    poses_from: float = 0.1
    """Poses are refined from here on: the first Gaussians are too rough to say where a camera was."""


@dataclass(frozen=True)
class LossConfig:
    """Differences from the photograph, and from dense depth."""

    ssim_share: float = 0.2
    """Share of structural similarity in the difference of images, as in Kerbl et al."""
    certainty_weights: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0)
    """Weight of a depth by its `Certainty`."""
    edge: float = 0.05
    """Relative step of depth between neighbouring pixels across which there is no surface normal."""


@dataclass(frozen=True)
class DensificationConfig:
    """Gaussians that move and are added, as in Kheradmand et al. 2024."""

    dead: float = 0.005
    """Opacity below which a Gaussian shows nothing."""
    growth: float = 1.05
    """Factor by which the number grows each time."""
    max_copies: int = 51
    """Gaussians that one is divided into at a time."""
    noise: float = 5e5
    """Noise of positions as a multiple of their rate."""
    bytes_per_splat: int = 2_500
    """Memory of a Gaussian under training: 59 numbers with gradients and two moments, and what drawing needs."""
    memory_share: float = 0.6
    """Share of the free memory that Gaussians may take."""


@dataclass(frozen=True)
class CorrectionConfig:
    """Refinement of poses, focal length and exposure. Rates fall to a hundredth."""

    pose_rate: float = 1e-4
    """Step of rotations (rad) and of translations."""
    focal_rate: float = 2e-5
    """Step of the logarithm of the focal length."""
    exposure_rate: float = 2e-3
    pose_decay: float = 1e-3
    exposure_decay: float = 1e-3
    """Weights that draw corrections to 0: the scene itself is to explain what is common to all images."""


@dataclass(frozen=True)
class FloaterConfig:
    """Which Gaussians are in space that depth maps show free."""

    min_certainty: int = Certainty.NEAR
    """Of depth that says where space is free."""
    margin: float = 0.08
    """Depth that a Gaussian must lie in front of a surface, as a share of the surface's depth."""
    min_maps: int = 2
    """Maps that show a place free."""
    sizes: float = 2.0
    """Standard deviations of a Gaussian that must be in free space, too."""


@dataclass(frozen=True)
class SplatConfig:
    """All of the training."""

    shell: ShellConfig = field(default_factory=ShellConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    densification: DensificationConfig = field(default_factory=DensificationConfig)
    corrections: CorrectionConfig = field(default_factory=CorrectionConfig)
    floaters: FloaterConfig = field(default_factory=FloaterConfig)


DEFAULT_SPLATS = SplatConfig()
