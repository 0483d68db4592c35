"""What a batch is to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stream_recon.app.batch.jobs import BatchScene, Job, Model, plan_units
from stream_recon.app.batch.store import Store
from stream_recon.app.slam.mode import MappingChoice
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.configs.errors import ConfigError


@dataclass(frozen=True)
class Batch:
    """Scenes found under a root, and a place for their results."""

    root: Path
    store: Store
    scenes: Sequence[BatchScene]
    choice: FrameChoice
    split: int = 1
    """Windows that each scene is cut into."""
    mapping: MappingChoice = "off"
    """What geometry does with each scene."""
    mask_sky: bool = False
    scales: Mapping[str, str] = field(default_factory=dict)
    """What brings scenes to metres, by their names; see `find_scales`."""
    options: dict[str, Any] = field(default_factory=dict)
    """As given by the user, for the summary."""

    def __post_init__(self) -> None:
        if self.split < 1:
            raise ConfigError(f"--split must be at least 1, not {self.split}")

    def units(self, model: Model) -> list[Job]:
        """One for each scene."""
        units = [self._as_chosen(unit) for unit in plan_units(self.root, self.scenes, self.choice, model)]
        if self.split == 1:
            return units
        split = {"split": self.split}
        return [replace(unit, key={**unit.key, "options": {**unit.key["options"], **split}}) for unit in units]

    def _as_chosen(self, unit: Job) -> Job:
        """With what is done to a scene's frames and result."""
        scale = self.scales.get(unit.scene.name)
        chosen = {
            "mapping": None if self.mapping == "off" else self.mapping,
            "mask_sky": self.mask_sky or None,
            "scale_from": scale,
        }
        # Results of versions that knew nothing of it stay valid where it is not asked for.
        told = {name: value for name, value in chosen.items() if value is not None}
        key = {**unit.key, "options": {**unit.key["options"], **told}}
        return replace(unit, mapping=self.mapping, mask_sky=self.mask_sky, scale_from=scale, key=key)
