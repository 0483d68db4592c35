"""Scene tables of the ray caster: one row a primitive."""

from dataclasses import dataclass

from torch import Tensor

# Primitives live in the cube of +-1; an affine map takes the world there.
BOX, FRUSTUM, ELLIPSOID, BLOB = 0, 1, 2, 3
# Perforations, evaluated at a hit: railings, wire mesh, foliage.
SOLID, BARS, LATTICE, LEAVES = 0, 1, 2, 3

SLOTS = 128  # primitives of a scene
# Rows of surfaces that are no primitives follow the primitives' rows.
WALL, FLOOR, CEILING, PORTAL, WALL_BEYOND, GROUND = range(SLOTS, SLOTS + 6)
ROWS = SLOTS + 6
KEY_FACES = 8  # key = row * KEY_FACES + face
# Faces: 0 +x (or the curved side), 1 -x, 2 +y, 3 -y, 4 +z, 5 -z.

AIR_BOXES = 5  # the room, a doorway, the room beyond it, two windows
AIR_OFF, AIR_ROOM, AIR_WINDOW = 0, 1, 2
GROUND_NONE, GROUND_PLANE, GROUND_TERRAIN = 0, 1, 2

# Columns of a primitive's row: A (9, row-major), b (3), type, shape (2: tapers, or amplitude and frequency),
# perforation, its frequency, and the bounding sphere (centre 3, radius).
COLUMNS = 24
TYPE, SHAPE, MASK, MASK_FREQUENCY, SPHERE = 12, 13, 15, 16, 17

NEAR = 0.02  # metres
FAR = 1.0e4  # metres; further is sky


@dataclass
class SyntheticScene:
    """Geometry of a batch of clips, float32 unless stated otherwise.

    primitives [B, SLOTS, COLUMNS], filled from the front; count int32 [B], how many are filled.
    air [B, AIR_BOXES, 7]: boxes of free space (low 3, high 3, flag); what is outside their union is wall.
    ground [B, 4]: mode, then for terrain the x and y of the map's corner and its cell size in metres.
    heights [B, G, G] in metres, indexed [y, x].
    """

    primitives: Tensor
    count: Tensor
    air: Tensor
    ground: Tensor
    heights: Tensor


@dataclass
class Views:
    """Cameras of all frames, flat: float32 [F, 16] (R_world_camera 9, position 3, fx, fy, clip, 0)."""

    table: Tensor
    height: int
    width: int
