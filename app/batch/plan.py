"""What a batch is to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stream_recon.app.batch.store import Store
from stream_recon.app.batch.units import BatchScene, Model, Unit, plan_units
from stream_recon.app.mapping.choice import MappingChoice
from stream_recon.app.video.frame_choice import FrameChoice
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
    options: dict[str, Any] = field(default_factory=dict)
    """As given by the user, for the summary."""

    def __post_init__(self) -> None:
        if self.split < 1:
            raise ConfigError(f"--split must be at least 1, not {self.split}")

    def units(self, model: Model) -> list[Unit]:
        """One for each scene."""
        units = [
            replace(
                unit,
                mapping=self.mapping,
                key=unit.key if self.mapping == "off" else _with_mapping(unit.key, self.mapping),
            )
            for unit in plan_units(self.root, self.scenes, self.choice, model)
        ]
        if self.split == 1:
            return units
        split = {"split": self.split}
        return [replace(unit, key={**unit.key, "options": {**unit.key["options"], **split}}) for unit in units]


def _with_mapping(key: dict[str, Any], mapping: MappingChoice) -> dict[str, Any]:
    """Results of versions that knew no refinement stay valid where none is asked for."""
    return {**key, "options": {**key["options"], "mapping": mapping}}
