"""What each scene of a batch has for itself beside its frames: masks, and where its scale is taken from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.batch.jobs import BatchScene
from stream_recon.app.metric_scale.scale_source import Distance, parse_scale_source
from stream_recon.app.sources.masks import MaskFolder
from stream_recon.configs.errors import ConfigError, InputError

TRACK = "track:"
TRACK_SUFFIXES = (".gpx", ".csv", ".txt", ".tum")


@dataclass(frozen=True)
class Scales:
    """What was found, by the scenes' names, and which scenes have nothing."""

    of: Mapping[str, str]
    without: tuple[str, ...] = ()


def find_masks(scenes: Sequence[BatchScene], given: Path) -> Mapping[str, str]:
    """The folders of masks by the scenes' names: ``given/SCENE``, else the folder ``given`` within the scene.

    Raises:
        InputError: no scene has one, or one has no images in it.
    """
    found = {}
    for scene in scenes:
        folder = next((path for path in _places(scene, given, ("",)) if path.is_dir()), None)
        if folder is not None:
            MaskFolder(folder)
            found[scene.name] = str(folder)
    if not found:
        raise InputError(
            f"--masks {given}: no scene has masks there: looked for {given}/{scenes[0].name} and, in each scene's "
            f"folder, {given.name}"
        )
    return found


def find_scales(scenes: Sequence[BatchScene], given: str) -> Scales:
    """Scale source of each scene, see `parse_scale_source`. A track is each scene's own: of ``track:PLACE``
    the file ``PLACE/SCENE.gpx`` (or .csv, .txt, .tum), else the file ``PLACE`` within the scene's folder.

    Raises:
        ConfigError: of no known form, or none that many scenes can share.
        InputError: a track cannot be read, or no scene has one.
    """
    if not given.strip().startswith(TRACK):
        kind, text = parse_scale_source(given)
        if isinstance(kind, Distance) and len(scenes) > 1:
            raise ConfigError(
                f"--scale-from {given}: frames of which scene? Bring each to metres by 'stream-recon scale'"
            )
        return Scales({scene.name: text for scene in scenes})
    name, at, seconds = given.strip().removeprefix(TRACK).rpartition("@")
    place = Path(name if at else seconds)
    if place.is_file():
        if len(scenes) > 1:
            raise ConfigError(
                f"--scale-from {given}: one track for {len(scenes)} scenes; give a folder of tracks called like the "
                "scenes, or the name of a file that each scene's folder has"
            )
        return Scales({scenes[0].name: parse_scale_source(given)[1]})
    found = {}
    for scene in scenes:
        file = next((path for path in _places(scene, place, TRACK_SUFFIXES) if path.is_file()), None)
        if file is not None:
            found[scene.name] = parse_scale_source(f"{TRACK}{file}{at}{seconds if at else ''}")[1]
    if not found:
        raise InputError(
            f"--scale-from {given}: no scene has a track there: looked for {place}/{scenes[0].name}.gpx (.csv, .txt, "
            f".tum) and, in each scene's folder, {place.name}"
        )
    return Scales(found, tuple(scene.name for scene in scenes if scene.name not in found))


def _places(scene: BatchScene, given: Path, suffixes: Sequence[str]) -> list[Path]:
    names = dict.fromkeys((scene.name, scene.path.name, scene.path.stem if scene.path.is_file() else scene.name))
    places = [given.absolute() / f"{name}{suffix}" for name in names for suffix in suffixes]
    # Videos side by side have no folder of their own.
    own = [] if given.is_absolute() or not scene.path.is_dir() else [scene.path / given]
    return [*places, *own]
