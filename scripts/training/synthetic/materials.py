"""Material types such as wood, paint, brick or foliage, as ranges of material parameters."""

from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True)
class MaterialType:
    """Ranges of a material's parameters. Colours are hue, saturation, value in 0..1; lengths in metres.

    A pattern is a lattice of cells (bricks, planks, books, tiles) with joints, noise and waves added.
    """

    hue: Range = (0.0, 1.0)
    saturation: Range = (0.0, 0.3)
    value: Range = (0.3, 0.9)
    contrast: Range = (0.6, 1.2)  # value of the second colour, relative to the first
    joint: Range = (0.2, 0.6)  # value of joints and window panes
    photo: Range = (0.1, 0.1)  # probability of a photo tile
    fit: Range = (0.0, 0.0)  # probability that the tile fills the face
    photo_size: Range = (0.5, 2.0)
    cell: Range = (0.3, 1.0)  # width of a cell
    aspect: Range = (1.0, 1.0)  # width over height of a cell
    shift: Range = (0.0, 0.0)  # of every other row, in cells
    gap: Range = (0.0, 0.0)  # joint's width, in cells
    cells: Range = (0.0, 0.0)  # weight of a cell's own tone
    tint: Range = (0.0, 0.0)  # of a cell's own hue
    inner: Range = (0.0, 0.0)  # size of a pane in a cell
    noise: Range = (0.3, 0.6)  # weight of noise
    noise_scale: Range = (1.0, 6.0)  # noise periods per cell
    stretch: Range = (1.0, 1.0)
    sharp: Range = (1.0, 1.5)
    waves: Range = (0.0, 0.0)  # weight of waves
    wave_scale: Range = (1.0, 4.0)
    warp: Range = (0.0, 0.5)
    grain: Range = (0.02, 0.15)
    detail: Range = (-0.15, 0.15)  # weight of detail at the limit of resolution, at any distance; none below 0
    gloss: Range = (0.0, 0.1)
    glow: Range = (0.0, 0.0)
    turn: Range = (0.0, 0.0)  # radians


WOOD = MaterialType(
    hue=(0.05, 0.11), saturation=(0.2, 0.65), value=(0.18, 0.75), contrast=(0.55, 0.95), photo=(0.15, 0.15),
    cell=(0.12, 0.5), aspect=(1.0, 1.0), noise=(0.3, 0.7), noise_scale=(2.0, 5.0), stretch=(0.08, 0.25),
    waves=(0.0, 0.5), wave_scale=(0.5, 2.0), warp=(0.5, 2.0), gloss=(0.0, 0.25), turn=(0.0, 1.571),
    detail=(-0.15, 0.35),
)  # fmt: skip
PLANKS = MaterialType(
    hue=(0.05, 0.11), saturation=(0.15, 0.6), value=(0.25, 0.8), contrast=(0.6, 1.0), joint=(0.1, 0.4),
    photo=(0.15, 0.15), photo_size=(1.0, 3.0), cell=(0.6, 1.6), aspect=(6.0, 12.0), shift=(0.3, 0.6),
    gap=(0.003, 0.02),
    cells=(0.2, 0.7), noise=(0.2, 0.6), noise_scale=(4.0, 10.0), stretch=(1.0, 3.0), gloss=(0.0, 0.25),
    turn=(0.0, 1.571),
    detail=(-0.15, 0.35),
)  # fmt: skip
PAINT = MaterialType(
    saturation=(0.0, 0.25), value=(0.45, 0.95), contrast=(0.9, 1.0), photo=(0.05, 0.05), cell=(0.5, 2.0),
    noise=(0.05, 0.5), grain=(0.0, 0.06), gloss=(0.0, 0.15),
)  # fmt: skip
WALLPAPER = MaterialType(
    saturation=(0.05, 0.45), value=(0.4, 0.9), contrast=(0.6, 1.2), photo=(0.5, 0.5), photo_size=(0.6, 3.0),
    cell=(0.1, 0.6), aspect=(0.5, 2.0), shift=(0.0, 0.5), gap=(0.0, 0.1), cells=(0.0, 0.4),
    inner=(-1.0, 0.5),
    noise=(0.0, 0.5), waves=(0.0, 0.6), gloss=(0.0, 0.05), turn=(-0.05, 0.05),
    detail=(-0.2, 0.35),
)  # fmt: skip
FABRIC = MaterialType(
    saturation=(0.05, 0.7), value=(0.15, 0.85), contrast=(0.7, 1.1), photo=(0.2, 0.2), cell=(0.03, 0.3),
    shift=(0.0, 0.5), cells=(0.0, 0.4), noise=(0.1, 0.6), sharp=(1.0, 3.0), waves=(-0.4, 0.5),
    grain=(0.05, 0.3),
    gloss=(0.0, 0.0), turn=(0.0, 1.571),
    detail=(-0.2, 0.5),
)  # fmt: skip
CURTAIN = MaterialType(
    saturation=(0.0, 0.6), value=(0.3, 0.95), contrast=(0.55, 0.9), cell=(0.12, 0.3), noise=(0.1, 0.3),
    stretch=(0.1, 0.3), waves=(0.6, 1.0), wave_scale=(0.8, 1.5), warp=(0.3, 1.0), photo=(0.0, 0.0),
)  # fmt: skip
METAL = MaterialType(
    saturation=(0.0, 0.08), value=(0.1, 0.8), contrast=(0.85, 1.1), cell=(0.2, 0.6), noise=(0.1, 0.4),
    stretch=(0.05, 0.5), grain=(0.0, 0.08), gloss=(0.2, 0.7), photo=(0.03, 0.03),
    detail=(-0.1, 0.06),
)  # fmt: skip
PLASTIC = MaterialType(
    saturation=(0.3, 0.95), value=(0.2, 0.95), contrast=(0.85, 1.1), noise=(0.02, 0.3), grain=(0.0, 0.06),
    gloss=(0.1, 0.5), photo=(0.05, 0.05),
    detail=(-0.1, 0.06),
)  # fmt: skip
LACQUER = MaterialType(
    saturation=(0.0, 0.95), value=(0.12, 0.9), contrast=(0.94, 1.02), cell=(0.5, 2.0), noise=(0.0, 0.2),
    grain=(0.0, 0.03), gloss=(0.05, 0.4), photo=(0.0, 0.0),
    detail=(-0.1, 0.04),
)  # fmt: skip
BLACK = MaterialType(
    saturation=(0.0, 0.15), value=(0.03, 0.15), contrast=(0.9, 1.5), noise=(0.05, 0.4), gloss=(0.1, 0.6),
    photo=(0.0, 0.0),
)  # fmt: skip
CERAMIC = MaterialType(
    saturation=(0.0, 0.5), value=(0.5, 0.97), contrast=(0.8, 1.0), cell=(0.03, 0.2), noise=(0.05, 0.3),
    gap=(0.0, 0.15),
    gloss=(0.2, 0.6), photo=(0.1, 0.1), fit=(0.5, 0.5),
    detail=(-0.1, 0.06),
)  # fmt: skip
TILES = MaterialType(
    saturation=(0.0, 0.35), value=(0.35, 0.92), contrast=(0.75, 1.1), joint=(0.3, 0.9), cell=(0.1, 0.6),
    aspect=(1.0, 2.0), gap=(0.01, 0.05), cells=(0.0, 0.5), tint=(0.0, 0.1), noise=(0.1, 0.5),
    gloss=(0.0, 0.4),
    photo=(0.15, 0.15),
)  # fmt: skip
CARPET = MaterialType(
    saturation=(0.05, 0.6), value=(0.15, 0.7), contrast=(0.6, 1.3), photo=(0.3, 0.3), cell=(0.1, 0.8),
    cells=(0.0, 0.4), inner=(-0.5, 0.6), noise=(0.2, 0.8), noise_scale=(2.0, 12.0), sharp=(1.0, 4.0),
    grain=(0.1, 0.4),
    gloss=(0.0, 0.0),
    detail=(-0.1, 0.6),
)  # fmt: skip
BOOKS = MaterialType(
    saturation=(0.2, 0.8), value=(0.2, 0.85), contrast=(0.3, 1.3), joint=(0.03, 0.2), cell=(0.025, 0.06),
    aspect=(0.03, 0.08), gap=(0.03, 0.1), cells=(0.6, 1.0), tint=(0.3, 0.9), inner=(-0.3, 0.5),
    noise=(0.1, 0.3),
    photo=(0.05, 0.05),
    detail=(-0.1, 0.6),
)  # fmt: skip
DOORS = MaterialType(
    hue=(0.03, 0.15), saturation=(0.0, 0.5), value=(0.3, 0.95), contrast=(0.85, 1.0), joint=(0.1, 0.5),
    cell=(0.35, 0.8), aspect=(0.5, 1.6), gap=(0.01, 0.03), cells=(0.0, 0.1), inner=(-0.8, 0.8),
    noise=(0.1, 0.4),
    stretch=(0.1, 0.5), gloss=(0.0, 0.2), photo=(0.03, 0.03),
)  # fmt: skip
PICTURE = MaterialType(
    saturation=(0.1, 0.9), value=(0.2, 0.9), contrast=(0.2, 1.5), photo=(0.85, 0.85), fit=(1.0, 1.0),
    cell=(0.1, 0.5),
    cells=(0.0, 0.8), tint=(0.0, 0.6), gap=(0.0, 0.1), inner=(-0.5, 0.7), noise=(0.3, 1.0),
    sharp=(1.0, 5.0),
    noise_scale=(0.5, 3.0), gloss=(0.0, 0.1),
    detail=(-0.2, 0.7),
)  # fmt: skip
SCREEN = MaterialType(
    hue=(0.5, 0.7), saturation=(0.0, 0.6), value=(0.04, 0.5), contrast=(0.5, 3.0), photo=(0.5, 0.5),
    fit=(1.0, 1.0),
    cell=(0.02, 0.2), aspect=(2.0, 8.0), gap=(0.0, 0.1), cells=(0.0, 1.0), gloss=(0.1, 0.5),
    glow=(-0.4, 0.6),
)  # fmt: skip
PAPER = MaterialType(
    saturation=(0.0, 0.5), value=(0.5, 0.97), contrast=(0.2, 0.8), photo=(0.3, 0.3), fit=(0.8, 0.8),
    cell=(0.02, 0.1),
    aspect=(2.0, 6.0), shift=(0.0, 0.5), gap=(0.0, 0.3), cells=(0.0, 0.8), noise=(0.0, 0.3),
    gloss=(0.0, 0.1),
    detail=(-0.2, 0.7),
)  # fmt: skip
LAMP = MaterialType(
    hue=(0.08, 0.17), saturation=(0.0, 0.25), value=(0.8, 1.0), contrast=(0.9, 1.0), noise=(0.0, 0.2),
    glow=(0.0, 1.0),
    photo=(0.0, 0.0),
    detail=(0.0, 0.0),
)  # fmt: skip
FOLIAGE = MaterialType(
    hue=(0.17, 0.38), saturation=(0.25, 0.75), value=(0.12, 0.6), contrast=(0.3, 1.3), photo=(0.25, 0.25),
    photo_size=(0.5, 3.0), cell=(0.1, 0.5), cells=(0.1, 0.6), shift=(0.0, 0.5),
    noise=(0.5, 1.0), noise_scale=(1.0, 4.0),
    sharp=(1.5, 4.0), grain=(0.2, 0.6), gloss=(0.0, 0.05), turn=(0.0, 1.571),
    detail=(0.2, 1.2),
)  # fmt: skip
GRASS = MaterialType(
    hue=(0.12, 0.33), saturation=(0.2, 0.65), value=(0.15, 0.6), contrast=(0.5, 1.3), photo=(0.4, 0.4),
    photo_size=(1.0, 8.0), cell=(1.0, 6.0), noise=(0.4, 1.0), noise_scale=(1.0, 6.0), sharp=(1.0, 3.0),
    grain=(0.15, 0.5), gloss=(0.0, 0.0), turn=(0.0, 1.571),
    detail=(0.1, 0.9),
)  # fmt: skip
EARTH = MaterialType(
    hue=(0.03, 0.14), saturation=(0.08, 0.5), value=(0.2, 0.7), contrast=(0.5, 1.2), photo=(0.4, 0.4),
    photo_size=(1.0, 8.0), cell=(1.0, 5.0), noise=(0.4, 1.0), noise_scale=(0.7, 5.0),
    sharp=(1.0, 3.0), grain=(0.1, 0.5),
    gloss=(0.0, 0.0), turn=(0.0, 1.571),
    detail=(0.0, 0.8),
)  # fmt: skip
ASPHALT = MaterialType(
    saturation=(0.0, 0.1), value=(0.15, 0.5), contrast=(0.75, 1.2), photo=(0.15, 0.15),
    photo_size=(2.0, 8.0),
    cell=(2.0, 8.0), aspect=(0.4, 2.5), gap=(0.0, 0.01), noise=(0.2, 0.7), noise_scale=(1.0, 5.0),
    stretch=(0.2, 1.5), grain=(0.1, 0.4), gloss=(0.0, 0.05),
    turn=(0.0, 1.571),
    detail=(-0.1, 0.5),
)  # fmt: skip
PAVING = MaterialType(
    hue=(0.0, 0.15), saturation=(0.0, 0.3), value=(0.3, 0.75), contrast=(0.6, 1.1), joint=(0.15, 0.5),
    cell=(0.2, 0.9),
    aspect=(1.0, 2.5), shift=(0.0, 0.5), gap=(0.02, 0.06), cells=(0.1, 0.6), noise=(0.2, 0.6),
    grain=(0.05, 0.3),
    photo=(0.15, 0.15), photo_size=(1.0, 5.0), gloss=(0.0, 0.0),
    detail=(-0.1, 0.5),
)  # fmt: skip
BRICK = MaterialType(
    hue=(0.0, 0.1), saturation=(0.1, 0.65), value=(0.3, 0.8), contrast=(0.5, 1.1), joint=(0.3, 0.8),
    cell=(0.2, 0.6),
    aspect=(2.0, 3.5), shift=(0.5, 0.5), gap=(0.03, 0.08), cells=(0.3, 0.9), noise=(0.1, 0.5),
    grain=(0.05, 0.25),
    photo=(0.2, 0.2), photo_size=(1.5, 5.0), gloss=(0.0, 0.0),
    detail=(-0.1, 0.5),
)  # fmt: skip
PLASTER = MaterialType(
    hue=(0.0, 0.17), saturation=(0.0, 0.4), value=(0.45, 0.95), contrast=(0.75, 1.05), cell=(1.0, 4.0),
    noise=(0.1, 0.7), noise_scale=(1.0, 6.0), grain=(0.03, 0.2), photo=(0.15, 0.15), photo_size=(1.5, 6.0),
    gloss=(0.0, 0.0),
    detail=(-0.2, 0.4),
)  # fmt: skip
FACADE = MaterialType(
    hue=(0.0, 0.17), saturation=(0.0, 0.5), value=(0.35, 0.95), contrast=(0.8, 1.05), joint=(0.08, 0.5),
    cell=(1.4, 5.0), aspect=(0.6, 2.0), cells=(0.0, 0.05), inner=(0.35, 0.75), noise=(0.1, 0.5),
    grain=(0.02, 0.2),
    photo=(0.25, 0.25), photo_size=(4.0, 14.0), gloss=(0.0, 0.1),
    detail=(-0.2, 0.35),
)  # fmt: skip
ROOF = MaterialType(
    hue=(0.0, 0.09), saturation=(0.05, 0.6), value=(0.15, 0.55), contrast=(0.6, 1.1),
    joint=(0.05, 0.3), cell=(0.3, 0.6),
    aspect=(1.0, 2.0), shift=(0.0, 0.5), gap=(0.03, 0.1), cells=(0.1, 0.6), noise=(0.2, 0.6),
    photo=(0.1, 0.1),
    gloss=(0.0, 0.05),
    detail=(-0.1, 0.5),
)  # fmt: skip
STONE = MaterialType(
    hue=(0.05, 0.15), saturation=(0.0, 0.25), value=(0.25, 0.75), contrast=(0.4, 1.1), photo=(0.4, 0.4),
    photo_size=(0.7, 4.0), cell=(0.4, 2.0), noise=(0.6, 1.0), noise_scale=(1.0, 4.0),
    sharp=(1.0, 3.0), grain=(0.1, 0.5),
    gloss=(0.0, 0.05),
    detail=(0.0, 0.7),
)  # fmt: skip
CAR = MaterialType(
    saturation=(0.0, 0.9), value=(0.05, 0.9), contrast=(0.9, 1.0), noise=(0.0, 0.15), grain=(0.0, 0.03),
    gloss=(0.3, 0.8), photo=(0.0, 0.0),
    detail=(-0.1, 0.05),
)  # fmt: skip
BARK = MaterialType(
    hue=(0.03, 0.12), saturation=(0.1, 0.5), value=(0.12, 0.45), contrast=(0.4, 1.0),
    cell=(0.1, 0.3), noise=(0.6, 1.0),
    stretch=(0.15, 0.4), sharp=(1.0, 3.0), grain=(0.1, 0.4), gloss=(0.0, 0.0),
    detail=(0.1, 0.8),
)  # fmt: skip
WHITE = MaterialType(
    saturation=(0.0, 0.06), value=(0.82, 0.98), contrast=(0.94, 1.0), photo=(0.0, 0.0), cell=(0.5, 2.0),
    noise=(0.0, 0.25), grain=(0.0, 0.03), gloss=(0.0, 0.12),
    detail=(-0.1, 0.05),
)  # fmt: skip
SNOW = MaterialType(
    hue=(0.55, 0.65), saturation=(0.0, 0.07), value=(0.78, 0.98), contrast=(0.78, 1.0), photo=(0.0, 0.0),
    cell=(0.7, 4.0), noise=(0.2, 0.9), noise_scale=(0.8, 5.0), sharp=(1.0, 3.5), grain=(0.03, 0.25),
    gloss=(0.0, 0.0), turn=(0.0, 1.571),
    detail=(-0.1, 0.2),
)  # fmt: skip
CAMPUS = MaterialType(
    hue=(0.0, 0.1), saturation=(0.05, 0.55), value=(0.3, 0.85), contrast=(0.7, 1.0), joint=(0.1, 0.45),
    cell=(1.2, 4.5), aspect=(0.5, 1.6), gap=(-0.03, 0.03), inner=(0.4, 0.7), noise=(0.2, 0.6),
    noise_scale=(3.0, 12.0), grain=(0.05, 0.3), photo=(0.0, 0.0), gloss=(0.0, 0.1),
    detail=(-0.2, 0.35),
)  # fmt: skip
WILD = MaterialType(
    saturation=(0.0, 1.0), value=(0.05, 0.95), contrast=(0.1, 2.0), joint=(0.0, 1.0), photo=(0.65, 0.65),
    fit=(0.2, 0.2), photo_size=(0.3, 3.0), cell=(0.05, 1.0), aspect=(0.5, 3.0), shift=(0.0, 0.5),
    gap=(-0.1, 0.15),
    cells=(0.0, 1.0), tint=(-0.5, 0.7), inner=(-0.7, 0.7), noise=(0.0, 1.0),
    noise_scale=(0.5, 6.0), stretch=(0.2, 2.0),
    sharp=(1.0, 5.0), waves=(-0.5, 0.8), warp=(0.0, 2.0), grain=(0.0, 0.5), gloss=(-0.2, 0.5),
    turn=(0.0, 3.14),
    detail=(-0.4, 0.8),
)  # fmt: skip

MATERIAL_TYPES: dict[str, MaterialType] = {
    "wood": WOOD, "planks": PLANKS, "paint": PAINT, "wallpaper": WALLPAPER, "fabric": FABRIC,
    "curtain": CURTAIN,
    "metal": METAL, "plastic": PLASTIC, "black": BLACK, "ceramic": CERAMIC, "tiles": TILES,
    "carpet": CARPET,
    "books": BOOKS, "doors": DOORS, "picture": PICTURE, "screen": SCREEN, "paper": PAPER, "lamp": LAMP,
    "foliage": FOLIAGE, "grass": GRASS, "earth": EARTH, "asphalt": ASPHALT, "paving": PAVING,
    "brick": BRICK,
    "plaster": PLASTER, "facade": FACADE, "roof": ROOF, "stone": STONE, "car": CAR, "bark": BARK,
    "wild": WILD, "white": WHITE, "snow": SNOW, "campus": CAMPUS, "lacquer": LACQUER,
}  # fmt: skip
