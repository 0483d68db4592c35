"""Objects along walks and avenues, and their winter variants."""

from dataclasses import replace

from training.synthetic.parts import Part, Template, box, lump, rod
from training.synthetic.primitives import BARS, LATTICE, LEAVES
from training.synthetic.street_props import STREET

_WALLS = ("campus", "campus", "facade", "brick")


def _bicycle() -> tuple[Part, ...]:
    """Along y: two wheels of spokes, a frame, and a handlebar."""
    wheels = tuple(
        rod((0, y, 0.33), (0.02, 0, 0), (0.01, 0.33, 0.33), axis=0, mask=LATTICE, frequency=2.5, group=1)
        for y in (-0.3, 0.3)
    )
    frame = (
        box((0, 0.0, 0.78), (0, 0.25, 0), (0.02, 0, 0.02)), box((0, 0.02, 0.42), (0, 0.22, 0), (0.02, 0, 0.02)),
        box((0, -0.15, 0.65), (0, 0, 0.3), (0.015, 0.015, 0)), box((0, -0.17, 0.96), (0.1, 0.08, 0.03), group=1),
        box((0, 0.24, 0.72), (0, 0, 0.25), (0.02, 0.02, 0)),
        box((0, 0.24, 0.99), (0.5, 0, 0), (0, 0.015, 0.015), group=1),
    )  # fmt: skip
    return wheels + frame


ROADSIDE: tuple[Template, ...] = (
    Template("trunk", ((0.15, 0.5), (0.15, 0.5), (4.0, 10.0)), (rod((0, 0, 0.5), (0.5, 0.5, 0.5), shape=(0.36, 0.0)),),
             (("bark",),)),
    Template("branch", ((0.03, 0.2), (0.03, 0.2), (0.6, 4.0)), (rod((0, 0, 0.5), (0.5, 0.5, 0.5), shape=(0.4, 0.0)),),
             (("bark",),)),
    Template("twig_tree", ((2.0, 6.0), (2.0, 6.0), (4.0, 10.0)),
             (rod((0, 0, 0.4), (0, 0, 0.41), (0.09, 0.09, 0), shape=(0.35, 0.0)),
              rod((0.06, 0.04, 0.66), (0, 0, 0.3), (0.045, 0.045, 0), shape=(0.3, 0.0)),
              rod((-0.05, -0.05, 0.62), (0, 0, 0.25), (0.04, 0.04, 0), shape=(0.3, 0.0)),
              lump((0, 0, 0.68), (0.42, 0.42, 0.4), shape=(0.22, 0.75), mask=LEAVES, frequency=13.0)),
             (("bark",),)),
    Template("bare_bush", ((0.7, 2.0), (0.7, 2.0), (0.6, 1.6)),
             (lump((0, 0, 0.45), (0.5, 0.5, 0.55), shape=(0.16, 0.8), mask=LEAVES, frequency=13.0),
              rod((0, 0, 0.3), (0, 0, 0.3), (0.02, 0.02, 0))),
             (("bark", "earth"),)),
    Template("campus_block", ((18.0, 45.0), (9.0, 16.0), (6.5, 18.0)),
             (box((0, 0, 0.5), (0.5, 0.5, 0.5)), box((0, 0, 1.0), (0.505, 0.51, 0.015), group=1),
              box((-0.15, 0.52, 0.14), (0.06, 0.03, 0.14), group=2), box((0.2, 0.51, 0.5), (0.05, 0.02, 0.5), group=2),
              box((0, 0.5, 0.35), (0.5, 0.008, 0.012), group=1)),
             (_WALLS, ("stone", "plaster", "metal"), ("screen", "brick", "stone"))),
    Template("row_house", ((6.0, 12.0), (7.0, 10.0), (5.5, 9.0)),
             (box((0, 0, 0.34), (0.5, 0.5, 0.34)), box((0, 0, 0.83), (0.51, 0.56, 0.17), shape=(0.0, 0.49), group=1),
              box((0.1, 0.5, 0.14), (0, 0, 0.13), (0.5, 0.05, 0), group=2)),
             (("facade", "facade", "campus", "white"), ("roof",), ("doors", "wood"))),
    Template("parked_car", ((1.65, 1.9), (3.8, 4.8), (1.4, 1.75)),
             (box((0, 0, 0.41), (0.5, 0.5, 0.21), shape=(0.04, 0.02)),
              box((0, -0.06, 0.8), (0.46, 0.34, 0.2), shape=(0.12, 0.2)),
              box((0, -0.06, 0.78), (0.465, 0.315, 0.12), shape=(0.11, 0.16), group=1),
              *(rod((0, y, 0.2), (0.48, 0, 0), (0.0, 0.3, 0.3), axis=0, group=2) for y in (-0.31, 0.31))),
             (("car",), ("black",), ("black",))),
    Template("verge", ((14.0, 40.0), (1.2, 3.5), (0.04, 0.16)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("grass", "grass", "grass", "earth"),)),
    Template("pole", ((0.1, 0.2), (0.1, 0.2), (2.4, 7.0)), (rod((0, 0, 0.5), (0.5, 0.5, 0.5), shape=(0.05, 0.0)),),
             (("metal", "wood", "stone", "bark", "paint"),)),
    Template("post", ((0.09, 0.2), (0.09, 0.2), (2.3, 3.0)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("metal", "paint", "white", "wood"),)),
    Template("rope", ((3.0, 9.0), (0.02, 0.03), (0.02, 0.03)), (rod((0, 0, 0.5), (0.5, 0.5, 0.5), axis=0),),
             (("white", "black", "metal"),)),
    Template("walk_path", ((40.0, 60.0), (1.6, 4.0), (0.02, 0.05)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("paving", "paving", "asphalt", "planks"),)),
    Template("canopy", ((12.0, 30.0), (2.2, 4.0), (0.2, 0.3)),
             (box((0, 0, 0.9), (0.5, 0.6, 0), (0, 0, 0.02)),
              *(box((0, y, 0.4), (0.5, 0, 0), (0, 0.05, 0.1), group=1) for y in (-0.5, 0.5)),
              box((0, 0, 0.55), (0.5, 0.5, 0), (0, 0, 0.04), mask=BARS, frequency=9.0, group=1)),
             (("plastic", "screen", "metal"), ("metal", "white", "wood"))),
    Template("long_railing", ((8.0, 20.0), (0.05, 0.1), (0.9, 1.2)),
             (*(box((0, 0, z), (0.5, 0, 0), (0, 0.02, 0.02)) for z in (0.35, 0.65, 0.98)),
              box((0, 0, 0.5), (0.5, 0, 0.5), (0, 0.02, 0), mask=BARS, frequency=4.0)),
             (("white", "metal", "paint", "wood"),)),
    Template("bicycle", ((0.5, 0.62), (1.6, 1.85), (0.95, 1.1)), _bicycle(), (("car", "metal"), ("black",))),
)  # fmt: skip

_BY_NAME = {template.name: template for template in (*STREET, *ROADSIDE)}


def _with_materials(name: str, new: str, *material_types: tuple[str, ...]) -> Template:
    return replace(_BY_NAME[name], name=new, material_types=material_types)


SNOWY: tuple[Template, ...] = (
    _with_materials("house", "snowy_house", ("facade", "brick", "plaster"), ("snow",), ("brick", "wood", "doors")),
    _with_materials("row_house", "snowy_row_house", ("facade", "campus"), ("snow",), ("doors", "wood")),
    _with_materials("block", "snowy_block", ("facade", "campus"), ("snow",), ("doors", "screen")),
    _with_materials("low_wall", "snowy_wall", ("brick", "stone"), ("snow",)),
    _with_materials("conifer", "snowy_conifer", ("foliage", "snow"), ("bark",)),
    _with_materials("hedge", "snowy_hedge", ("bark", "snow", "foliage")),
    _with_materials("rock", "snowy_rock", ("snow", "stone")),
    _with_materials("kerb", "snowy_kerb", ("snow", "paving")),
    _with_materials("verge", "snowy_verge", ("snow",)),
)
# Templates in winter: without leaves, and under snow.
LEAFLESS = {"tree": "bare_tree", "young_tree": "twig_tree", "bush": "bare_bush"}
UNDER_SNOW = {
    "house": "snowy_house", "row_house": "snowy_row_house", "block": "snowy_block", "low_wall": "snowy_wall",
    "conifer": "snowy_conifer", "hedge": "snowy_hedge", "rock": "snowy_rock", "kerb": "snowy_kerb",
    "verge": "snowy_verge",
}  # fmt: skip
