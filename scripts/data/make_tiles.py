#!/usr/bin/env python3
"""Makes the photo tiles that the scene generator hangs on walls and wraps around things.

Downloads Debian packages of wallpapers and game textures with apt-get, cuts 256x256 tiles and writes an .npz of
their JPEG bytes: `data` (all files, one after the other), `length` (of each), `package` (index of each), and
`packages`, `versions`, `licences` as the packages' own copyright files state them. Tiles are not for committing.

    scripts/data/make_tiles.py .tiles/tiles.npz
"""

import argparse
import io
import re
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
SIZE, QUALITY = 256, 66
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


@dataclass(frozen=True)
class Package:
    """name in Debian; cuts: tiles of each picture (0: the picture is a texture, one tile); most: tiles in all;
    skip: what in a path marks drawings, logos, duplicates and things that are no surface."""

    name: str
    cuts: int
    most: int
    skip: str = r"(?!)"


PACKAGES = (
    Package(
        "plasma-workspace-wallpapers", 60, 260,
        r"screenshot|/[0-9]{3,4}x(?!1600\.)|images_dark|Flow|Volna|Kokkini|Opal|Shell|Cluster|Honeywave|Safe|Altai|Patak|Kay|Milky|Ice",
    ),
    Package("lomiri-wallpapers-16.04", 45, 190, r"analog|Painting"),
    Package("lomiri-wallpapers-20.04", 30, 60),
    Package(
        "mate-backgrounds", 40, 200,
        r"Stripes|no-logo|Float|Traditional|Gulp|Arc-Col|Flow|Waves|Spring|Silk|3840|5640|cosmos",
    ),
    Package("ukui-wallpapers", 30, 60, r"2004|firstgen|mouse|rhythm|focal|goldfish"),
    Package("lxqt-themes", 30, 60, r"preview|close|cursor|logo|origami|triangle|beam|wave|plasma|simple|fluent|window"),
    Package(
        "openarena-081-textures", 0, 400,
        r"skies|effects|sfx|liquid|env/|decal|flare|blood|logo|ctf|fire|flame|proc|lava|stars",
    ),
    Package("colobot-common-textures", 0, 40, r"^(?!.*(mars|desert|roc|terra|moon1|wood|green|dirty|chili))"),
)  # fmt: skip


def download(package: Package, cache: Path) -> tuple[Path, str]:
    """Unpacks a package below the cache folder, once; its folder and version."""
    folder = cache / package.name
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", package.name], cwd=cache, check=True)
        archive = next(cache.glob(package.name + "_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    version = next(cache.glob(package.name + "_*.deb")).name.split("_")[1].replace("%3a", ":")
    return folder, version


def licence(folder: Path, package: Package) -> str:
    """The licences that a package's copyright file names."""
    text = (folder / "usr/share/doc" / package.name / "copyright").read_text(errors="replace")
    names = sorted({name.strip() for name in re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)})
    return "; ".join(names) or "see its copyright file"


def pictures(folder: Path, package: Package) -> Iterator[Image]:
    """Pictures of a package, also of game archives in it, in the order of their paths."""
    skip = re.compile(package.skip)
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or skip.search(name):
            continue
        if path.suffix.lower() in SUFFIXES:
            picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
            if picture is not None:
                yield picture.astype(np.uint8)
        elif path.suffix == ".pk3":
            yield from archived(path, skip)


def archived(path: Path, skip: re.Pattern[str]) -> Iterator[Image]:
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        names = sorted(n for n in archive.namelist() if n.startswith("textures/") and not skip.search(n))
        for name in names:
            if Path(name).suffix.lower() in SUFFIXES:
                picture = cv2.imdecode(np.frombuffer(archive.read(name), np.uint8), cv2.IMREAD_COLOR)
                if picture is not None:
                    yield picture.astype(np.uint8)


def cut(picture: Image, cuts: int, random: np.random.Generator) -> list[Image]:
    """Square tiles of a picture: random crops, or a complete texture."""
    height, width = picture.shape[:2]
    short = min(height, width)
    if short < 128:
        return []
    tiles: list[Image] = []
    for _ in range(max(cuts, 1)):
        side = short
        if cuts:
            side = int(np.exp(random.uniform(np.log(min(280, short)), np.log(short))))
        y, x = random.integers(0, height - side + 1), random.integers(0, width - side + 1)
        if not cuts:
            y, x = 0, 0
        window = picture[y : y + side, x : x + side]
        method = cv2.INTER_AREA if side >= SIZE else cv2.INTER_CUBIC
        tile = cv2.resize(window, (SIZE, SIZE), interpolation=method)
        if not is_rich(tile):
            continue
        # Dark game textures are lifted to daylight.
        if tile.mean() < 85:
            tile = np.clip(tile.astype(np.float32) * (85 / tile.mean()) ** 0.8, 0, 255)
        tiles.append(tile.astype(np.uint8))
    return tiles


def is_rich(tile: Image) -> bool:
    """Whether a tile has detail in most places: smooth gradients and flat shapes are what paint is for."""
    grey = cv2.resize(cv2.cvtColor(tile, cv2.COLOR_BGR2GRAY), (64, 64), interpolation=cv2.INTER_AREA)
    slope = np.abs(np.diff(grey.astype(np.float32), axis=1))
    busy = cv2.boxFilter(slope, -1, (9, 9))
    return bool(tile.mean() > 20 and tile.std() > 11 and np.quantile(busy, 0.3) > 1.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the .npz to write")
    parser.add_argument("--cache", type=Path, help="folder of downloads (default: next to the output)")
    options = parser.parse_args()
    cache = options.cache or options.output.parent / "packages"
    random = np.random.default_rng(0)
    files: list[bytes] = []
    owner: list[int] = []
    versions, licences = [], []
    for number, package in enumerate(PACKAGES):
        folder, version = download(package, cache)
        tiles = [tile for picture in pictures(folder, package) for tile in cut(picture, package.cuts, random)]
        kept = random.permutation(len(tiles))[: package.most]
        for i in kept:
            files.append(cv2.imencode(".jpg", tiles[i], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes())
            owner.append(number)
        versions.append(version)
        licences.append(licence(folder, package))
        print(f"{package.name} {version}: {len(kept)} tiles, licence {licences[-1]}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.output,
        data=np.frombuffer(b"".join(files), np.uint8),
        length=np.array([len(f) for f in files], np.int32),
        package=np.array(owner, np.int32),
        packages=np.array([p.name for p in PACKAGES]),
        versions=np.array(versions),
        licences=np.array(licences),
    )
    print(f"{len(files)} tiles, {options.output.stat().st_size / 1e6:.1f} MB: {options.output}")


if __name__ == "__main__":
    main()
