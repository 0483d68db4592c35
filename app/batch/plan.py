"""Plan of a batch: its scenes and options, and the masks and scale source of each scene."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_recon.app.batch.jobs import BatchScene, Job, ModelIdentity, plan_jobs
from stream_recon.app.batch.store import Store
from stream_recon.app.metric_scale.scale_source import Distance, parse_scale_source
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.masks import MaskFolder
from stream_recon.configs.errors import ConfigError, InputError

TRACK = "track:"
"""Prefix of ``--scale-from`` for GPS and SLAM tracks."""
TRACK_SUFFIXES = (".gpx", ".csv", ".txt", ".tum")
"""File types of tracks that are looked for under a scene's name."""


@dataclass(frozen=True)
class Batch:
    """Scenes found under a root, their options, and the store for their results."""

    root: Path
    store: Store
    scenes: Sequence[BatchScene]
    options: RunOptions = field(default_factory=RunOptions)
    split: int = 1
    """Chunks that each scene is split into."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """Source of the metric scale by scene name; see `find_scales`."""
    recorded: dict[str, Any] = field(default_factory=dict)
    """Options as the user gave them, for the summary."""

    def __post_init__(self) -> None:
        if self.split < 1:
            raise ConfigError(f"--split must be at least 1, not {self.split}")

    def jobs(self, model: ModelIdentity) -> list[Job]:
        """One job per scene, with the batch's options."""
        return plan_jobs(self.root, self.scenes, self.options, model, self.split, self.scales)


@dataclass(frozen=True)
class SceneScales:
    """Scale sources found for the scenes of a batch."""

    sources: Mapping[str, str]
    """Scale source by scene name."""
    missing: tuple[str, ...] = ()
    """Names of scenes without one."""


def find_masks(scenes: Sequence[BatchScene], masks: Path) -> Mapping[str, str]:
    """Mask folders by scene name: ``masks/SCENE``, else the folder ``masks`` within the scene.

    Raises InputError where no scene has masks, or a folder has no images.
    """
    folders = _sidecars(scenes, masks, ("",))
    for folder in folders.values():
        MaskFolder(folder)
    if not folders:
        raise InputError(
            f"--masks {masks}: no scene has masks there: looked for {masks}/{scenes[0].name} and, in each scene's "
            f"folder, {masks.name}"
        )
    return {name: str(folder) for name, folder in folders.items()}


def find_scales(scenes: Sequence[BatchScene], scale_from: str) -> SceneScales:
    """Scale source of each scene, in the form that `parse_scale_source` reads.

    Tracks belong to one scene each: ``track:PATH`` is the file ``PATH/SCENE.gpx`` (or .csv, .txt, .tum), else the file
    ``PATH`` within the scene's folder.

    Raises:
        ConfigError: an unknown form, or one that scenes cannot share.
        InputError: a track cannot be read, or no scene has one.
    """
    if scale_from.strip().startswith(TRACK):
        return _find_tracks(scenes, scale_from)
    kind, text = parse_scale_source(scale_from)
    if isinstance(kind, Distance) and len(scenes) > 1:
        raise ConfigError(
            f"--scale-from {scale_from}: frames of which scene? Give each scene its scale by 'stream-recon scale'"
        )
    return SceneScales({scene.name: text for scene in scenes})


def _find_tracks(scenes: Sequence[BatchScene], scale_from: str) -> SceneScales:
    """`find_scales` for ``track:PATH`` and ``track:PATH@SECONDS``."""
    name, at, seconds = scale_from.strip().removeprefix(TRACK).rpartition("@")
    path, offset = (Path(name), f"@{seconds}") if at else (Path(seconds), "")
    if path.is_file():
        if len(scenes) > 1:
            raise ConfigError(
                f"--scale-from {scale_from}: one track for {len(scenes)} scenes; give a folder of tracks called like "
                "the scenes, or the name of a file that each scene's folder has"
            )
        return SceneScales({scenes[0].name: parse_scale_source(scale_from)[1]})
    files = _sidecars(scenes, path, TRACK_SUFFIXES)
    if not files:
        raise InputError(
            f"--scale-from {scale_from}: no scene has a track there: looked for {path}/{scenes[0].name}.gpx (.csv, "
            f".txt, .tum) and, in each scene's folder, {path.name}"
        )
    sources = {name: parse_scale_source(f"{TRACK}{file}{offset}")[1] for name, file in files.items()}
    return SceneScales(sources, tuple(scene.name for scene in scenes if scene.name not in sources))


def _sidecars(scenes: Sequence[BatchScene], path: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Sidecar file, or folder where the suffix is empty, by scene name: ``path/SCENE`` or ``path`` in the scene."""
    sidecars = {}
    for scene in scenes:
        names = dict.fromkeys((scene.name, scene.path.name, scene.path.stem if scene.path.is_file() else scene.name))
        candidates = [path.absolute() / f"{name}{suffix}" for name in names for suffix in suffixes]
        # Videos in one folder have no folder each, so there is nothing within the scene.
        if not path.is_absolute() and scene.path.is_dir():
            candidates.append(scene.path / path)
        for candidate in candidates:
            if candidate.is_dir() if suffixes == ("",) else candidate.is_file():
                sidecars[scene.name] = candidate
                break
    return sidecars
