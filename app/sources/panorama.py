"""Frames that are no pinhole images: panoramas, cube maps, dual fish-eyes and stereo pairs, by file name, metadata or
content, and what to do with each."""

import re
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.cube_maps import EVEN, TEXTURE, grey_at, has_aspect, is_cube_map

ROUND, PART = "a panorama of 360 degrees", "a part of a panorama of 360 degrees"
"""Names of equirectangular pictures, and of such that are cropped."""
LAYOUTS = ("", "two views one above the other", "two views side by side", "two views", "two views side by side")
"""Kinds of stereo pictures by their number in Spherical Video V2."""
ABOVE, BESIDE = LAYOUTS[1:3]
CUBE = "a cube map of 360 degrees whose faces join in no known order"
MESH, GOPRO = "a picture for a dome or headset (VR180)", "the two lenses of a GoPro MAX in no known size or order"
FISHEYES, FISHEYE = "two fish-eye pictures", "a round picture of a fish-eye lens"
SPHERES = {ROUND, CUBE, MESH, GOPRO}  # may be read as views
SUFFIXES = {
    ".360": (GOPRO, "export it as a film of 360 degrees with GoPro Player"),
    ".insv": ("the lenses of an Insta360", "export it as a film of 360 degrees with Insta360 Studio"),
    ".insp": ("the lenses of an Insta360", "export it as a picture of 360 degrees with Insta360 Studio"),
    ".osv": ("the lenses of a DJI Osmo 360", "export it as a film of 360 degrees with DJI Studio"),
}
"""What files of cameras for all directions hold, by suffix, and what to do."""
ADVICE = {
    ROUND: "v360=e:flat:h_fov=90:v_fov=90:yaw=0",
    CUBE: "v360=c3x2:e:in_forder=rludfb (its faces by rows; or c6x1, c1x6, eac)",
    FISHEYES: "v360=dfisheye:e:ih_fov=190:iv_fov=190",
    FISHEYE: "v360=fisheye:flat:ih_fov=180:iv_fov=180:h_fov=90:v_fov=90",
    ABOVE: "crop=iw:ih/2:0:0",
    BESIDE: "crop=iw/2:ih:0:0 (of VR180: v360=hequirect:flat:in_stereo=sbs:h_fov=90:v_fov=90)",
}
"""Filter of FFmpeg that makes images of each kind that are read: perspective or equirectangular ones."""
MAX_XMP_BYTES = 1 << 18
"""Bytes of a photograph in which XMP is looked for: it stands at the front."""
ROWS = 256
"""Height to which larger images are reduced."""
CONTENT = 5.0
"""Standard deviation of grey levels from which a frame shows something: films begin with black."""
SEAM = 2.0
"""Difference across a seam that fits, as a multiple of that of neighbouring columns at the edges."""
DISTANT = 0.4
"""The same as a share of the difference of columns a quarter of the width apart."""
POLE = 0.35
"""Variation along the first and last row, each a single point, as a share of that along the middle row."""


def xmp_tags(prefix: bytes, xml: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of the elements and attributes with a prefix."""
    return re.findall(prefix + rb":(\w+)\s*(?:=\s*[\"']|>)\s*([\w.-]*)", xml)


def kind_in_xml(xml: bytes) -> str:
    """What frames are by the metadata of Spherical Video V1."""
    tags = {name: value for name, value in xmp_tags(b"GSpherical", xml) if value}  # end tags have none
    if any(tags.get(name, b"true").lower() != b"true" for name in (b"Spherical", b"Stitched")):
        return "pictures of 360 degrees that are not stitched"
    stereo, projection = tags.get(b"StereoMode", b"mono"), tags.get(b"ProjectionType", b"equirectangular")
    if stereo != b"mono":
        return LAYOUTS[{b"top-bottom": 1, b"left-right": 2}.get(stereo, 3)]
    if projection != b"equirectangular":
        return f"of projection {projection.decode('latin-1')}"
    return PART if is_cropped(tags) else ROUND


def is_cropped(tags: Mapping[bytes, bytes]) -> bool:
    """Whether an equirectangular picture is a part of the sphere, by tags of Spherical Video V1 or Photo Sphere."""
    pairs = ((b"CroppedAreaImage%sPixels" % side, b"FullPano%sPixels" % side) for side in (b"Width", b"Height"))
    return any(tags.get(own) != tags.get(whole) for own, whole in pairs if own in tags or whole in tags)


def kind_by_file(path: Path) -> str:
    """What an image is by its suffix or XMP metadata (Photo Sphere, by Google); empty for an ordinary one."""
    if path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()][0]
    try:
        with open_regular(path) as file:
            head = file.read(MAX_XMP_BYTES)
    except (OSError, ValueError):
        return ""
    named = re.search(rb"xmlns:(\w+)\s*=\s*[\"']http://ns\.google\.com/photos/1\.0/panorama/", head)
    prefix = named[1] if named is not None else b"GPano"
    tags = xmp_tags(prefix, head)
    words = {value.decode() for name, value in tags if name == b"ProjectionType" and value}
    if tags and not words:
        return "a panorama whose XMP (GPano) has no ProjectionType"
    whole = PART if is_cropped({name: value for name, value in tags if value}) else ROUND
    kinds = {"equirectangular": whole, "cubemap": CUBE, "rectilinear": "", "perspective": ""}
    return max((kinds.get(word, f"a {word} panorama") for word in words), default="")


def refusal(name: str, kind: str, *, is_seen: bool = False) -> str:
    """Message on frames of a kind that no pinhole camera shows. ``is_seen``: it was judged by their content."""
    if kind == "encrypted":
        return f"{name} is encrypted: it can be played only by whom it was sold to"
    advice = next((advice for what, advice in SUFFIXES.values() if what == kind), "")
    how = f", such as with ffmpeg -vf {ADVICE[kind]}" if kind in ADVICE else ""
    whole = "make a film of 360 degrees (equirectangular) of it first"
    first = {ABOVE: "cut one out first", BESIDE: "cut one out first", CUBE: whole, FISHEYES: whole}
    shown = advice or f"{first.get(kind, 'cut perspective views from it first')}{how}"
    otherwise = "; if it is not so, give the camera with --intrinsics" if is_seen else ""
    return f"{name} shows {kind}, which no pinhole camera does: {shown}{otherwise}"


def kind_of_picture(rgb: NDArray[np.uint8]) -> str:
    """What an image [H, W, 3] is, by its content, that no pinhole camera shows; empty for an ordinary picture."""
    checks = (
        (is_equirectangular, ROUND),
        (is_dual_fisheye, FISHEYES),
        (is_fisheye, FISHEYE),
        (is_cube_map, CUBE),
        (is_side_by_side, BESIDE),
        (is_one_above_the_other, ABOVE),
    )
    return next((kind for is_kind, kind in checks if min(rgb.shape[:2]) >= 64 and is_kind(rgb)), "")


def is_equirectangular(rgb: NDArray[np.uint8]) -> bool:
    """Whether an image [H, W, 3] is an equirectangular panorama: its left edge continues its right one, and its first
    and last row are almost one colour each."""
    if len(rgb) < 64 or not has_aspect(rgb, 2):
        return False
    rows = min(ROWS, len(rgb))
    grey = grey_at(rgb, (2 * rows, rows))
    left, right = grey[:, 0], grey[:, -1]
    if min(left.std(), right.std()) < TEXTURE:
        return False
    seam = float(np.abs(left - right).mean())
    neighbours = float((np.abs(grey[:, 1] - left).mean() + np.abs(grey[:, -2] - right).mean()) / 2)
    distant = float(np.abs(grey - np.roll(grey, rows // 2, axis=1)).mean())
    along = [float(np.abs(row - np.roll(row, rows // 2)).mean()) for row in (grey[1], grey[-2])]
    return seam <= SEAM * max(neighbours, 1.0) and seam < DISTANT * distant and max(along) < POLE * distant


DISK = 128
"""Side in pixels to which each half is reduced that may hold a circular image."""
DARK = 24.0
"""Largest level of the corners outside a circular image."""
FILLED = 0.8
"""Least share of the circle that is brighter than its corners."""
ROUNDNESS = 0.02
"""Distance of the rim from a circle, as a share of the radius, up to which it is one: nine of ten points."""


def is_dual_fisheye(rgb: NDArray[np.uint8]) -> bool:
    """Whether both halves of an image [H, W, 3] of 2:1 or 1:2 are circles on black."""
    if not has_aspect(rgb, 2) and not has_aspect(rgb, 0.5):
        return False
    is_wide = rgb.shape[1] > rgb.shape[0]
    grey = grey_at(rgb, (2 * DISK, DISK) if is_wide else (DISK, 2 * DISK))
    return all(_is_disk(half) for half in np.split(grey, 2, axis=int(is_wide)))


def is_fisheye(rgb: NDArray[np.uint8]) -> bool:
    """Whether an image [H, W, 3] is one circle on black, which may be cut off above and below or at the sides."""
    grey = grey_at(rgb, (max(8, round(DISK * rgb.shape[1] / len(rgb))), DISK))
    return any(_is_disk(levels) for levels in (grey, grey.T))


def _is_disk(grey: NDArray[np.float32]) -> bool:
    """Whether what is bright in most rows of an image lies in a circle, and all around it is black."""
    bright = grey > DARK
    first, last = bright.argmax(axis=1), bright[:, ::-1].argmax(axis=1)
    inside = np.flatnonzero(bright.any(axis=1) & (first > 0) & (last > 0))
    if len(inside) < len(grey) / 2:
        return False
    x = np.concatenate([first[inside] - 0.5, grey.shape[1] - last[inside] - 0.5])
    y = np.concatenate([inside, inside]).astype(np.float64)
    (u, v, c), *_ = np.linalg.lstsq(np.stack([2 * x, 2 * y, np.ones_like(x)], axis=1), x**2 + y**2, rcond=None)
    radius = float(np.sqrt(max(c + u**2 + v**2, 0.0)))
    rows, columns = np.indices(grey.shape)
    away = np.hypot(columns - u, rows - v)
    is_round = np.quantile(np.abs(np.hypot(x - u, y - v) - radius), 0.9) < ROUNDNESS * radius
    if not is_round or radius < 0.4 * min(grey.shape) or not (away > 1.05 * radius).any():
        return False
    around = grey[away > 1.05 * radius]
    return bool(around.max() <= DARK + EVEN and around.std() <= EVEN and bright[away < 0.8 * radius].mean() >= FILLED)


HALF_ROWS = 72
"""Height to which the halves of a frame are reduced."""
BLUR = 4.0
"""Standard deviation in pixels of what is subtracted, so that light and shade do not count."""
MAX_SHIFT = 0.12
"""Shift of one half against the other that is tried, as a share of its width: stereo cameras have less."""
MIN_CORRELATION = 0.45
"""Correlation from which halves are two views of one place; of halves of wide pictures it is below 0.25."""
ALIKE, OTHERWISE = 0.7, 0.6
"""The same where no edge divides the frame, and the share of it up to which a half may be like its own mirror image, or
itself at another place, as in symmetrical scenes and rows of windows."""
DETAILED, DETAIL = 0.5, 2.0
"""Share of pixels that must have detail, and grey levels that are detail: few edges fit each other by chance."""
EDGE_PX = 5
"""Distance over which the middle is compared with its surroundings: more than a codec smooths."""


def is_side_by_side(rgb: NDArray[np.uint8]) -> bool:
    """Whether the left and right half of a frame [H, W, 3] show the same place, as films of stereo cameras do."""
    half = rgb.shape[1] // 2
    return min(len(rgb), half) >= 32 and _are_views(rgb[:, :half], rgb[:, -half:], rgb)


def is_one_above_the_other(rgb: NDArray[np.uint8]) -> bool:
    """Whether the upper and lower half of a frame [H, W, 3] show the same place."""
    half = len(rgb) // 2
    return min(half, rgb.shape[1]) >= 32 and _are_views(rgb[:half], rgb[-half:], rgb.swapaxes(0, 1))


def _are_views(first: NDArray[np.uint8], second: NDArray[np.uint8], across: NDArray[np.uint8]) -> bool:
    """Whether halves show one place; ``across``: the whole, whose middle column would be between them."""
    a, b = _details(first), _details(second)
    if (np.abs(a) > DETAIL).mean() < DETAILED:
        return False
    alike = _correlation(a, b)
    if alike < MIN_CORRELATION or _has_edge(across):
        return alike >= MIN_CORRELATION
    width = a.shape[1]
    itself = max(_correlation(a[:, at:], a[:, : width - at], 0.0) for at in range(width // 4, width // 2 + 1))
    return alike > ALIKE and max(itself, _correlation(a[:, ::-1], b)) < OTHERWISE * alike


def _has_edge(rgb: NDArray[np.uint8]) -> bool:
    """Whether an edge from top to bottom divides an image in its middle."""
    middle = rgb.shape[1] // 2 - EDGE_PX // 2 - 1
    at = middle + np.array([0, *(sign * far for sign in (-1, 1) for far in range(2 * EDGE_PX, 5 * EDGE_PX, 3))])
    green = rgb[..., 1].astype(np.float32)
    steps = np.abs(green[:, at + EDGE_PX] - green[:, at])
    # All along, so that no thing in the picture makes it.
    is_long = (steps[:, 0] > SEAM * np.median(steps, axis=1) + 2).mean() > 0.4
    return bool(is_long and steps[:, 0].mean() > SEAM * max(1.0, float(np.median(steps.mean(axis=0)))))


def _details(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Grey levels at a low resolution, without light and shade."""
    grey = grey_at(image, (max(32, round(image.shape[1] * HALF_ROWS / image.shape[0])), HALF_ROWS))
    return np.asarray(grey - cv2.GaussianBlur(grey, (0, 0), BLUR), np.float32)


def _correlation(first: NDArray[np.float32], second: NDArray[np.float32], max_shift: float = MAX_SHIFT) -> float:
    """Largest correlation of two images of one size, over horizontal shifts up to a share of their width."""
    width, best = first.shape[1], 0.0
    for shift in range(-round(max_shift * width), round(max_shift * width) + 1):
        a = first[:, max(0, shift) : width + min(0, shift)]
        b = second[:, max(0, -shift) : width + min(0, -shift)]
        scale = float(np.sqrt((a**2).mean() * (b**2).mean()))
        best = max(best, float((a * b).mean()) / scale if scale > 1.0 else 0.0)
    return best
