"""Plan of a batch: its scenes and options, and the masks and scale source of each scene."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_recon.app.batch.jobs import BatchScene, Job, Model, plan_jobs
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

    def jobs(self, model: Model) -> list[Job]:
        """One job per scene, with the batch's options."""
        return plan_jobs(self.root, self.scenes, self.options, model, self.split, self.scales)


@dataclass(frozen=True)
class SceneScales:
    """Scale sources found for the scenes of a batch."""

    sources: Mapping[str, str]
    """Scale source by scene name."""
    missing: tuple[str, ...] = ()
    """Names of scenes without one."""


def find_masks(scenes: Sequence[BatchScene], given: Path) -> Mapping[str, str]:
    """Mask folders by scene name: ``given/SCENE``, else the folder ``given`` within the scene.

    Raises InputError where no scene has masks, or a folder has no images.
    """
    found = {}
    for scene in scenes:
        folder = next((path for path in _candidates(scene, given, ("",)) if path.is_dir()), None)
        if folder is not None:
            MaskFolder(folder)
            found[scene.name] = str(folder)
    if not found:
        raise InputError(
            f"--masks {given}: no scene has masks there: looked for {given}/{scenes[0].name} and, in each scene's "
            f"folder, {given.name}"
        )
    return found


def find_scales(scenes: Sequence[BatchScene], given: str) -> SceneScales:
    """Scale source of each scene, in the form that `parse_scale_source` reads.

    Tracks belong to one scene each: ``track:PATH`` is the file ``PATH/SCENE.gpx`` (or .csv, .txt, .tum), else the file
    ``PATH`` within the scene's folder.

    Raises:
        ConfigError: an unknown form, or one that scenes cannot share.
        InputError: a track cannot be read, or no scene has one.
    """
    if not given.strip().startswith(TRACK):
        kind, text = parse_scale_source(given)
        if isinstance(kind, Distance) and len(scenes) > 1:
            raise ConfigError(
                f"--scale-from {given}: frames of which scene? Give each scene its scale by 'stream-recon scale'"
            )
        return SceneScales({scene.name: text for scene in scenes})
    name, at, seconds = given.strip().removeprefix(TRACK).rpartition("@")
    path = Path(name if at else seconds)
    if path.is_file():
        if len(scenes) > 1:
            raise ConfigError(
                f"--scale-from {given}: one track for {len(scenes)} scenes; give a folder of tracks called like the "
                "scenes, or the name of a file that each scene's folder has"
            )
        return SceneScales({scenes[0].name: parse_scale_source(given)[1]})
    found = {}
    for scene in scenes:
        file = next((file for file in _candidates(scene, path, TRACK_SUFFIXES) if file.is_file()), None)
        if file is not None:
            found[scene.name] = parse_scale_source(f"{TRACK}{file}{at}{seconds if at else ''}")[1]
    if not found:
        raise InputError(
            f"--scale-from {given}: no scene has a track there: looked for {path}/{scenes[0].name}.gpx (.csv, .txt, "
            f".tum) and, in each scene's folder, {path.name}"
        )
    return SceneScales(found, tuple(scene.name for scene in scenes if scene.name not in found))


def _candidates(scene: BatchScene, given: Path, suffixes: Sequence[str]) -> list[Path]:
    """Paths of a scene's sidecar file or folder, the most specific first."""
    names = dict.fromkeys((scene.name, scene.path.name, scene.path.stem if scene.path.is_file() else scene.name))
    paths = [given.absolute() / f"{name}{suffix}" for name in names for suffix in suffixes]
    # Videos in one folder have no folder each, so there is nothing within the scene.
    within = [] if given.is_absolute() or not scene.path.is_dir() else [scene.path / given]
    return [*paths, *within]
