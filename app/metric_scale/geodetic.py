"""Positions on Earth as metres east, north and up of one of them, by the ellipsoid of WGS 84."""

import numpy as np

from stream_recon.app.core.transforms import FloatArray

EQUATOR = 6_378_137.0
SQUARED_ECCENTRICITY = 6.694_379_990_14e-3


def east_north_up(degrees: FloatArray, height: FloatArray) -> tuple[FloatArray, tuple[float, float, float]]:
    """Positions [N, 3] in metres from latitudes and longitudes [N, 2] in degrees and heights [N], and their origin:
    the first one's latitude, longitude and height."""
    latitude, longitude = np.radians(degrees).T
    origin = float(degrees[0, 0]), float(degrees[0, 1]), float(height[0])
    xyz = _from_centre(latitude, longitude, height)
    b, a = latitude[0], longitude[0]
    axes = np.array(
        [
            [-np.sin(a), np.cos(a), 0],
            [-np.sin(b) * np.cos(a), -np.sin(b) * np.sin(a), np.cos(b)],
            [np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)],
        ]
    )
    return np.asarray((xyz - xyz[0]) @ axes.T), origin


def _from_centre(latitude: FloatArray, longitude: FloatArray, height: FloatArray) -> FloatArray:
    across = EQUATOR / np.sqrt(1 - SQUARED_ECCENTRICITY * np.sin(latitude) ** 2)
    return np.stack(
        [
            (across + height) * np.cos(latitude) * np.cos(longitude),
            (across + height) * np.cos(latitude) * np.sin(longitude),
            (across * (1 - SQUARED_ECCENTRICITY) + height) * np.sin(latitude),
        ],
        axis=1,
    )
