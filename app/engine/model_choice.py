"""The choice of a model, as commands make it and workers get it. Needs no torch until the model is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.configs.schema import AttentionChoice, CacheChoice, Preset, keyframe_overrides, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, weights_file

if TYPE_CHECKING:
    from stream_recon.app.engine.engine import Engine, LoadedModel


@dataclass(frozen=True)
class ModelChoice:
    """Which network, and how it runs. Survives pickling."""

    preset: str = EMBEDDED_PRESET
    """A name or a TOML file."""
    weights: Path | None = None
    """A .safetensors file that fits the preset; None: the embedded one."""
    device: str = "auto"
    attention: AttentionChoice = "auto"
    keyframes: str | None = None
    """``flow``, ``every`` or a number N for every N-th frame; None: as the preset has it."""
    cache: CacheChoice = "full"

    def load_preset(self) -> Preset:
        """The preset with the keyframes chosen. Raises ConfigError."""
        return load_preset(self.preset, keyframe_overrides(self.keyframes))

    def weights_file(self) -> Path:
        """The file that would be loaded. Raises ConfigError, WeightsError."""
        return weights_file(self.load_preset(), self.weights)

    def load(self, weights_sha256: str | None = None) -> "Engine":
        """The engine. This imports torch, so what torch has to find in the environment is set by now.

        Args:
            weights_sha256: of the weights on this machine, where it is known.

        Raises:
            ConfigError, WeightsError, ResourceError: see `load_engine`.
        """
        from stream_recon.app.engine.engine import load_engine

        return load_engine(
            preset=self.preset,
            weights=self.weights,
            device=self.device,
            attention=self.attention,
            overrides=keyframe_overrides(self.keyframes),
            cache=self.cache,
            weights_sha256=weights_sha256,
        )

    def load_model(self, weights_sha256: str | None = None) -> "LoadedModel":
        """As `load`, the network alone."""
        from stream_recon.app.engine.engine import load_model

        overrides = keyframe_overrides(self.keyframes)
        return load_model(self.preset, self.weights, self.device, self.attention, overrides, self.cache, weights_sha256)
