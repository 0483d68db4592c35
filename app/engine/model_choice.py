"""Choice of a model, as the command line and batch workers pass it. Imports no torch until the model is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_recon.configs.schema import (
    AttentionChoice,
    CacheChoice,
    PrecisionChoice,
    Preset,
    keyframe_overrides,
    load_preset,
    points_overrides,
)
from stream_recon.models.embedded import EMBEDDED_PRESET, weights_file

if TYPE_CHECKING:
    from stream_recon.app.engine.engine import Engine, LoadedModel


@dataclass(frozen=True)
class ModelChoice:
    """Which network, and how it runs. It can be pickled."""

    preset: str = EMBEDDED_PRESET
    """A name or a TOML file."""
    weights: Path | None = None
    """A .safetensors file that fits the preset; None: the embedded weights."""
    device: str = "auto"
    attention: AttentionChoice = "auto"
    keyframes: str | None = None
    """``flow``, ``every`` or a number N for every N-th frame; None: the preset's."""
    cache: CacheChoice = "full"
    confidence: str | None = None
    """Least confidence of points, see `points_overrides`; None: the preset's."""
    voxel: float | None = None
    """Edge of the cloud's voxels; None: the preset's."""
    precision: PrecisionChoice = "auto"
    max_patches: int | None = None
    """Most patches of the network's image; None: the preset's."""

    @property
    def overrides(self) -> dict[str, Any]:
        """Changed values of the preset. Raises ConfigError."""
        own = {} if self.max_patches is None else {"image.max_patches": self.max_patches}
        return keyframe_overrides(self.keyframes) | points_overrides(self.confidence, self.voxel) | own

    def load_preset(self) -> Preset:
        """The preset with these choices. Raises ConfigError."""
        return load_preset(self.preset, self.overrides)

    def weights_file(self) -> Path:
        """The weights to load. Raises ConfigError, WeightsError."""
        return weights_file(self.load_preset(), self.weights)

    def load(self, weights_sha256: str | None = None) -> "Engine":
        """The engine. This imports torch, so set torch's environment variables earlier.

        ``weights_sha256``: of the weights file, if known; None computes it. Raises ConfigError, WeightsError,
        ResourceError: see `load_engine`.
        """
        return self.load_model(weights_sha256).engine(self.attention, self.cache)

    def load_model(self, weights_sha256: str | None = None) -> "LoadedModel":
        """The network without an engine; see `load`."""
        from stream_recon.app.engine.engine import load_model

        known = self.load_preset(), self.weights, self.device, self.attention, self.cache, weights_sha256
        return load_model(*known, self.precision)
