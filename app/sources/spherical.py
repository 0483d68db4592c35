"""Metadata of panoramas by Google: Spherical Video V1 of films, Photo Sphere of photographs."""

import re
from collections.abc import Mapping

ROUND = "a panorama of 360 degrees"
"""Name of equirectangular pictures."""
PART = "a part of a panorama of 360 degrees"
"""Name of such pictures that are cropped."""
LAYOUTS = ("", "two views one above the other", "two views side by side", "two views", "two views side by side")
"""Kinds of stereo pictures by their number in Spherical Video V2."""


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
