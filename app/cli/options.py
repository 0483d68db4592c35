"""Options that several commands share, in panels by purpose. Imports nothing heavy: ``--help`` has to be fast."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import AttentionChoice, CacheChoice, DeviceChoice, PrecisionChoice

INPUT, OUTPUT, CAMERA, NETWORK = "Input", "Output", "Camera", "Network"
MAPPING, VIEWER, LIVE, WORKERS = "Mapping", "Viewer", "Live sources", "Workers"


def option(help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """An option with its help text; ``names`` only where they differ from the parameter's."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


Folder = Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of a run, finished or not.")]

Stride = Annotated[int, option("Take every n-th frame.", panel=INPUT)]
MaxFrames = Annotated[int | None, option("Stop after this number of frames.", panel=INPUT)]
MaskSky = Annotated[bool, option("Leave out sky: regions of almost no confidence.", "--mask-sky", panel=INPUT)]
Overwrite = Annotated[bool, option("Replace an earlier result there.", "--overwrite", panel=OUTPUT)]

Intrinsics = Annotated[
    str | None,
    option(
        "Known camera: fx,fy,cx,cy[,k1,k2,p1,p2[,k3]] in pixels, a file of COLMAP, nerfstudio, ROS .., or a capture.",
        panel=CAMERA,
        metavar="CAMERA",
    ),
]
DatasetIntrinsics = Annotated[
    bool, option("Use the camera in each scene's own files.", "--dataset-intrinsics", panel=CAMERA)
]
SCALE_FORMS = r"marker:METRES, frames:A,B,METRES, height:METRES, track:FILE\[@SECONDS] or exif"
ScaleFrom = Annotated[
    str | None, option(f"Convert the result to metres by {SCALE_FORMS}.", panel=MAPPING, metavar="WHAT")
]

Poses = Annotated[
    str | None,
    option(
        r"Known poses: a trajectory, COLMAP model or capture as FILE\[@SECONDS], fixed:FILE or scale:FILE.",
        panel=MAPPING,
        metavar="POSES",
    ),
]

Publish = Annotated[
    list[str] | None,
    option(
        "Publish while it runs: foxglove[://HOST:PORT], zenoh[://HOST:PORT] (ROS 2) or FILE.mcap; may be repeated.",
        "--publish",
        panel=OUTPUT,
        metavar="ADDRESS",
    ),
]

PresetName = Annotated[str, option("Name or TOML file of a preset.", "--preset", panel=NETWORK)]
Weights = Annotated[
    Path | None, option("A .safetensors file for this preset; default: the embedded one.", panel=NETWORK)
]
Device = Annotated[
    DeviceChoice,
    option("Where the network runs; auto: an NVIDIA GPU (cuda), Apple's (mps), or the CPU.", panel=NETWORK),
]
Attention = Annotated[
    AttentionChoice, option("Attention kernel; auto: Triton where it runs, else FlashInfer or torch.", panel=NETWORK)
]
Cache = Annotated[
    CacheChoice,
    option(
        "KV cache in full precision; in fp8 at half the memory (Ada GPUs on); or with compressed deep layers, faster "
        "and less exact.",
        panel=NETWORK,
    ),
]
Precision = Annotated[
    PrecisionChoice,
    option("Number type of the network's matrices; auto: the fastest here. int8: CPUs only.", panel=NETWORK),
]
Keyframes = Annotated[
    str | None,
    option("Keyframes by optical flow, every frame, or every N-th frame.", panel=NETWORK, metavar="flow|every|N"),
]
Confidence = Annotated[
    str | None,
    option(
        "Least confidence of points: low (0.05, all but sky), medium (0.5), high (0.9), or a number from 0 to 1.",
        panel=OUTPUT,
        metavar="LEVEL",
    ),
]
Voxel = Annotated[
    float | None, option("Distance of points, in units of the result; default: 0.01, or the run's.", panel=OUTPUT)
]
Mapping = Annotated[
    Literal["full", "stream", "off"],
    option("off: network only; stream: also SLAM back end; full: also offline refinement at the end.", panel=MAPPING),
]
Dense = Annotated[
    Literal["on", "off"], option("Depth by multi-view stereo after refinement.", "--dense", panel=MAPPING)
]
DenseSide = Annotated[int, option("Longer side of the dense depth maps in pixels.", "--dense-side", panel=MAPPING)]
DENSE_SIDE = 384
"""Default of ``--dense-side``; the same as in `stream_recon.app.stages.dense`, which loads more."""

KeepMap = Annotated[bool, option("Keep the features by which the place is recognized.", "--map/--no-map", panel=OUTPUT)]
Splat = Annotated[bool, option("Train Gaussian splats at the end; see 'splat --help'.", "--splat", panel=OUTPUT)]
Mesh = Annotated[bool, option("Make a textured mesh at the end.", "--mesh/--no-mesh", panel=OUTPUT)]

Host = Annotated[str, option("Address of the viewer; 0.0.0.0 admits other machines.", panel=VIEWER)]
Port = Annotated[
    int | None, option("Port of the viewer; default: 8080, or the next free one.", panel=VIEWER, min=0, max=65535)
]
PublicAddress = Annotated[
    str | None,
    option("Address at which a proxy shows the viewer.", "--public-address", panel=VIEWER, metavar="https://HOST/PATH"),
]
Token = Annotated[bool, option("Require the token of the printed address.", "--token/--no-token", panel=VIEWER)]


def scene_camera(intrinsics: str | None, from_dataset: bool) -> str | None:
    """Known camera of data set scenes, as `Scene` takes it. Raises ConfigError, InputError."""
    from stream_recon.app.datasets.scene import CALIBRATED, given_camera

    if from_dataset and intrinsics is not None:
        raise ConfigError("use --intrinsics or --dataset-intrinsics, not both")
    return CALIBRATED if from_dataset else None if intrinsics is None else given_camera(intrinsics).text()


def source_camera(intrinsics: str | None) -> str | None:
    """Known camera of a source as numbers, since a file may be gone when the source is opened again."""
    if intrinsics is None:
        return None
    from stream_recon.app.datasets.scene import given_camera
    from stream_recon.app.sources.calibration import EXIF

    return intrinsics if intrinsics == EXIF else given_camera(intrinsics).text()
