"""Options that several commands share, in panels by purpose. Imports nothing heavy: ``--help`` has to be fast."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import AttentionChoice, CacheChoice

INPUT, OUTPUT, CAMERA, NETWORK = "Input", "Output", "Camera", "Network"
MAPPING, VIEWER, LIVE, WORKERS = "Mapping", "Viewer", "Live sources", "Workers"

Folder = Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of a run, finished or not.")]

Stride = Annotated[int, typer.Option(help="Take every n-th frame.", rich_help_panel=INPUT)]
MaxFrames = Annotated[int | None, typer.Option(help="Stop after this number of frames.", rich_help_panel=INPUT)]
MaskSky = Annotated[
    bool,
    typer.Option("--mask-sky", help="Leave out sky: regions of almost no confidence.", rich_help_panel=INPUT),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier result there.", rich_help_panel=OUTPUT)
]

Intrinsics = Annotated[
    str | None,
    typer.Option(
        help="Known camera: fx,fy,cx,cy[,k1,k2,p1,p2[,k3]] in pixels, or a file of COLMAP, nerfstudio, ROS or OpenCV.",
        metavar="CAMERA",
        rich_help_panel=CAMERA,
    ),
]
DatasetIntrinsics = Annotated[
    bool,
    typer.Option("--dataset-intrinsics", help="Use the camera in each scene's own files.", rich_help_panel=CAMERA),
]
Calibrated = Annotated[bool, typer.Option("--calibrated", hidden=True)]
"""Name of ``--dataset-intrinsics`` in version 0.1, accepted until 0.3."""
SCALE_FORMS = r"marker:METRES, frames:A,B,METRES, height:METRES, track:FILE\[@SECONDS] or exif"
ScaleFrom = Annotated[
    str | None,
    typer.Option(help=f"Convert the result to metres by {SCALE_FORMS}.", metavar="WHAT", rich_help_panel=MAPPING),
]

PresetName = Annotated[str, typer.Option("--preset", help="Name or TOML file of a preset.", rich_help_panel=NETWORK)]
Weights = Annotated[
    Path | None,
    typer.Option(help="A .safetensors file for this preset; default: the embedded one.", rich_help_panel=NETWORK),
]
Device = Annotated[
    Literal["auto", "cuda", "cpu"], typer.Option(help="Where the network runs.", rich_help_panel=NETWORK)
]
Attention = Annotated[
    AttentionChoice,
    typer.Option(help="Attention kernel; auto: the fastest one on this machine.", rich_help_panel=NETWORK),
]
Cache = Annotated[
    CacheChoice,
    typer.Option(
        help="KV cache in full precision, or in fp8 at half the memory (Ada GPUs on).", rich_help_panel=NETWORK
    ),
]
Keyframes = Annotated[
    str | None,
    typer.Option(
        help="Keyframes by optical flow, every frame, or every N-th frame.",
        metavar="flow|every|N",
        rich_help_panel=NETWORK,
    ),
]
Mapping = Annotated[
    Literal["full", "stream", "off"],
    typer.Option(
        help="off: network only; stream: also SLAM back end; full: also offline refinement at the end.",
        rich_help_panel=MAPPING,
    ),
]

Host = Annotated[
    str, typer.Option(help="Address of the viewer; 0.0.0.0 admits other machines.", rich_help_panel=VIEWER)
]
Port = Annotated[int, typer.Option(help="Port of the viewer.", min=0, max=65535, rich_help_panel=VIEWER)]
Token = Annotated[
    bool,
    typer.Option("--token/--no-token", help="Require the token of the printed address.", rich_help_panel=VIEWER),
]


def scene_camera(intrinsics: str | None, from_dataset: bool) -> str | None:
    """Known camera of data set scenes, as `Scene` takes it. Raises ConfigError, InputError."""
    from stream_recon.app.datasets.scene import CALIBRATED
    from stream_recon.app.sources.calibration import parse_camera

    if from_dataset and intrinsics is not None:
        raise ConfigError("use --intrinsics or --dataset-intrinsics, not both")
    return CALIBRATED if from_dataset else None if intrinsics is None else parse_camera(intrinsics).text()


def source_camera(intrinsics: str | None) -> str | None:
    """Known camera of a source as numbers, since a file may be gone when the source is opened again."""
    from stream_recon.app.sources.calibration import EXIF, parse_camera

    return intrinsics if intrinsics in (None, EXIF) else parse_camera(intrinsics).text()
