"""Unmade beds, heavy tables, chairs with slats, frames of windows and doors, and small flat objects on walls."""

from training.synthetic.parts import Template, box, lump, rod
from training.synthetic.primitives import BARS

_BEDDING = ("white", "fabric", "white", "fabric")
_WOODS = ("wood", "wood", "paint", "white")

BEDROOM: tuple[Template, ...] = (
    Template(
        "messy_bed", ((0.9, 1.8), (1.9, 2.2), (0.6, 1.0)),
        (box((0, 0, 0.22), (0.5, 0.5, 0.16), group=1), box((0, 0, 0.5), (0.48, 0.49, 0.14)),
         box((0, -0.49, 0.5), (0.5, 0.02, 0.5), group=1),
         lump((0.0, 0.12, 0.6), (0.52, 0.4, 0.17), shape=(0.16, 1.1)),
         lump((-0.15, 0.3, 0.62), (0.36, 0.22, 0.2), shape=(0.22, 0.9)),
         lump((0.2, -0.02, 0.64), (0.3, 0.16, 0.16), shape=(0.2, 0.8)),
         lump((-0.05, -0.38, 0.68), (0.3, 0.1, 0.13), group=2)),
        (_BEDDING, ("wood", "white", "metal"), ("white", "fabric")),
    ),
    # Along a wall, under an overhead cupboard, between boards.
    Template(
        "bed_niche", ((1.95, 2.3), (0.9, 1.1), (2.2, 2.45)),
        (box((0, 0, 0.08), (0.5, 0.49, 0.08), group=1), box((0, 0, 0.2), (0.48, 0.48, 0.045)),
         box((0, -0.49, 0.28), (0.5, 0, 0.1), (0, 0.01, 0), group=1),
         lump((0.05, 0.05, 0.25), (0.44, 0.5, 0.06), shape=(0.16, 1.1)),
         lump((-0.1, 0.1, 0.26), (0.25, 0.4, 0.07), shape=(0.2, 0.9)),
         lump((0.36, -0.1, 0.275), (0.11, 0.28, 0.05), group=2),
         box((0, 0, 0.89), (0.5, 0.5, 0.11), group=1), box((0.495, 0, 0.5), (0, 0.5, 0.5), (0.012, 0, 0), group=1),
         box((-0.495, -0.1, 0.6), (0, 0.4, 0.2), (0.012, 0, 0), group=1),
         box((0.02, 0.505, 0.89), (0, 0, 0.1), (0.004, 0.004, 0), group=2)),
        (_BEDDING, _WOODS, ("white", "fabric", "black")),
    ),
    Template(
        "plank_table", ((1.1, 2.0), (0.75, 1.0), (0.7, 0.78)),
        (box((0, 0, 0.97), (0.5, 0.5, 0.03)), box((0, 0, 0.9), (0.44, 0.42, 0.05)),
         *(box((sx * 0.45, sy * 0.43, 0.47), (0, 0, 0.47), (0.045, 0.045, 0)) for sx in (-1, 1) for sy in (-1, 1))),
        (("wood", "wood", "wood", "white"),), 1.0,
    ),
    # Bars stand along a primitive's own x: with its z along the chair's x they lie.
    Template(
        "rail_chair", ((0.42, 0.5), (0.42, 0.52), (0.85, 1.0)),
        (box((0, 0.02, 0.49), (0.48, 0.46, 0), (0, 0, 0.03), group=1), box((0, 0.0, 0.43), (0.46, 0.44, 0.03)),
         box((-0.44, 0.43, 0.22), (0, 0, 0.22), (0.022, 0.022, 0)),
         box((0.44, 0.43, 0.22), (0, 0, 0.22), (0.022, 0.022, 0)),
         box((-0.44, -0.45, 0.5), (0, 0, 0.5), (0.02, 0.02, 0)), box((0.44, -0.45, 0.5), (0, 0, 0.5), (0.02, 0.02, 0)),
         box((0, -0.45, 0.75), (0.42, 0, 0.2), (0, 0.009, 0), axis=0, mask=BARS, frequency=2.0),
         box((0, -0.45, 0.95), (0.44, 0, 0.05), (0, 0.014, 0))),
        (("wood", "wood", "black", "white"), ("black", "fabric", "wood")),
    ),
)  # fmt: skip

NOTICES: tuple[Template, ...] = (
    Template("notice", ((0.15, 0.3), (0.016, 0.024), (0.2, 0.42)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("paper", "paper", "white", "picture"),)),
    Template("poster", ((0.4, 0.9), (0.016, 0.024), (0.5, 1.2)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("picture", "picture", "paper"),)),
    Template("socket", ((0.08, 0.16), (0.018, 0.03), (0.08, 0.09)), (box((0, 0, 0.5), (0.5, 0.5, 0.5)),),
             (("white", "white", "metal", "black"),)),
    Template("calendar", ((0.25, 0.4), (0.016, 0.024), (0.4, 0.6)),
             (box((0, 0, 0.75), (0.5, 0.5, 0.25)), box((0, -0.1, 0.25), (0.5, 0.4, 0.25), group=1)),
             (("picture",), ("paper", "white"))),
    Template("whiteboard", ((0.9, 2.0), (0.02, 0.03), (0.8, 1.2)),
             (box((0, -0.1, 0.5), (0.5, 0.4, 0.5), group=1), box((0, 0.1, 0.5), (0.485, 0.4, 0.48)),
              box((0, 0.8, 0.02), (0.4, 1.0, 0.02), group=1)),
             (("white",), ("metal", "white"))),
    Template("fuse_box", ((0.2, 0.45), (0.08, 0.14), (0.25, 0.5)),
             (box((0, 0, 0.5), (0.5, 0.4, 0.5)), box((0, 0.43, 0.5), (0.44, 0.07, 0.44), group=1)),
             (("white", "metal"), ("white", "paint"))),
    Template("coat_hooks", ((0.5, 1.0), (0.1, 0.16), (0.9, 1.1)),
             (box((0, -0.4, 0.96), (0.5, 0.1, 0.04), group=1),
              box((-0.2, 0, 0.5), (0.12, 0.4, 0.45), shape=(0.08, 0.1)),
              box((0.22, 0, 0.45), (0.14, 0.4, 0.5), shape=(0.1, 0.1), group=2),
              rod((0.05, 0, 0.94), (0, 0.4, 0), (0.01, 0, 0.01), axis=1, group=1)),
             (("fabric",), ("wood", "metal"), ("fabric", "black"))),
)  # fmt: skip

# As wide and high as the opening they fill.
FRAMES: tuple[Template, ...] = (
    Template("window_frame", ((0.7, 2.2), (0.06, 0.1), (0.8, 1.8)),
             (*(box((x, 0, 0.5), (0, 0.5, 0.5), (0.035, 0, 0)) for x in (-0.48, 0.0, 0.48)),
              *(box((0, 0, z), (0.5, 0.5, 0), (0, 0, 0.035)) for z in (0.02, 0.98)),
              box((0, 2.0, -0.01), (0.52, 1.6, 0), (0, 0, 0.012), group=1)),
             (("white", "white", "wood", "metal", "black"), ("white", "stone", "wood"))),
    Template("barred_frame", ((0.7, 2.2), (0.06, 0.1), (0.8, 1.8)),
             (*(box((x, 0, 0.5), (0, 0.5, 0.5), (0.03, 0, 0)) for x in (-0.48, 0.48)),
              *(box((x, 0, 0.5), (0, 0.3, 0.5), (0.015, 0, 0)) for x in (-0.16, 0.16)),
              *(box((0, 0, z), (0.5, 0.4, 0), (0, 0, 0.03)) for z in (0.02, 0.6, 0.98))),
             (("white", "white", "wood", "paint"),)),
    Template("door_frame", ((0.8, 1.1), (0.06, 0.1), (1.95, 2.2)),
             (*(box((x, 0, 0.5), (0, 0.5, 0.51), (0.04, 0, 0)) for x in (-0.5, 0.5)),
              box((0, 0, 1.0), (0.5, 0.5, 0), (0.04, 0, 0.04))),
             (("white", "wood", "paint"),)),
)  # fmt: skip
