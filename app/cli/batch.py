"""Commands ``batch`` and ``datasets``: every scene under a folder, and the data set layouts that are recognised."""

from pathlib import Path
from typing import Annotated

import typer

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.console import DONE, reported, wide_console
from stream_recon.app.cli.options import scene_camera


@reported
def batch_command(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of scenes, or one video file.")],
    dataset: Annotated[
        str | None, shared.option("Layout of all scenes; see 'stream-recon datasets'.", panel=shared.INPUT)
    ] = None,
    stride: shared.Stride = 1,
    max_frames: shared.MaxFrames = None,
    masks: Annotated[
        Path | None,
        shared.option(
            "Folder with a folder of masks for each scene, or the name of one in each scene.", panel=shared.INPUT
        ),
    ] = None,
    mask_sky: shared.MaskSky = False,
    dry_run: Annotated[
        bool, shared.option("List scenes and frames; run nothing.", "--dry-run", panel=shared.INPUT)
    ] = False,
    output: Annotated[
        str | None,
        shared.option(
            "Folder or address (s3://bucket/folder); default: ROOT-batch.",
            "--output",
            "-o",
            panel=shared.OUTPUT,
            metavar="FOLDER|ADDRESS",
        ),
    ] = None,
    compare: Annotated[
        Path | None, shared.option("Compare with the summary.json of another batch.", panel=shared.OUTPUT)
    ] = None,
    mesh: shared.Mesh = True,
    merge: Annotated[
        bool,
        shared.option(
            "The scenes show one place: merge their results into OUT/merged.", "--merge", panel=shared.OUTPUT
        ),
    ] = False,
    dense: shared.Dense = "on",
    dense_side: shared.DenseSide = shared.DENSE_SIDE,
    intrinsics: shared.Intrinsics = None,
    dataset_intrinsics: shared.DatasetIntrinsics = False,
    preset: shared.PresetName = "small",
    weights: shared.Weights = None,
    device: shared.Device = "auto",
    attention: shared.Attention = "auto",
    cache: shared.Cache = "full",
    precision: shared.Precision = "auto",
    keyframes: shared.Keyframes = None,
    mapping: shared.Mapping = "full",
    scale_from: Annotated[
        str | None,
        shared.option(
            "Convert to metres: marker:METRES, height:METRES, exif, or track:FOLDER|NAME, a track for each scene.",
            panel=shared.MAPPING,
            metavar="WHAT",
        ),
    ] = None,
    workers: Annotated[
        int | None, shared.option("Processes, each with its own model; default: one.", panel=shared.WORKERS)
    ] = None,
    streams: Annotated[
        int | None,
        shared.option(
            "Scenes at once on each GPU through one network; default on a GPU: 16 with the embedded network.",
            panel=shared.WORKERS,
        ),
    ] = None,
    split: Annotated[
        int,
        shared.option("Process each video in this number of overlapping chunks, then join them.", panel=shared.WORKERS),
    ] = 1,
) -> int:
    """Reconstruct every scene under a folder.

    Scenes with ground truth are evaluated. Writes a result folder for each scene, summary.json, summary.csv and
    index.html. The same command continues a stopped batch. Exit codes: 0 all done, 1 some scene failed, 2 bad input,
    130 stopped by Ctrl-C.
    """
    from stream_recon.app.batch.jobs import EngineLoader
    from stream_recon.app.cli.batch_run import BatchOptions, run
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.sources.frame_choice import FrameChoice

    camera = scene_camera(intrinsics, dataset_intrinsics)
    recorded = {"dataset": dataset, "stride": stride, "max_frames": max_frames, "device": device}
    recorded |= {"attention": attention, "cache": cache, "keyframes": keyframes, "split": split, "mapping": mapping}
    added = {"camera": camera, "masks": masks and str(masks), "mask_sky": mask_sky, "scale_from": scale_from}
    recorded |= {name: value for name, value in added.items() if value}
    model = ModelChoice(preset, weights, device, attention, keyframes, cache, precision=precision)
    options = RunOptions(
        FrameChoice(stride, max_frames=max_frames, camera=camera),
        model,
        mapping,
        mask_sky,
        dense_side if dense == "on" else None,
        mesh=mesh,
    )
    batch = BatchOptions(
        root,
        output,
        dataset,
        options,
        split=split,
        workers=workers,
        streams=streams,
        dry_run=dry_run,
        compare=compare,
        masks=masks,
        scale_from=scale_from,
        merge=merge,
    )
    return run(batch, EngineLoader(model), recorded)


@reported
def datasets_command() -> int:
    """List the data set layouts that 'batch' recognises."""
    from rich.table import Table

    from stream_recon.app.datasets.catalogue import list_datasets

    table = Table("--dataset", "layout")
    table.add_column("recognised by", overflow="fold")
    for name, title, files in list_datasets():
        table.add_row(name, title, files)
    wide_console().print(table)
    return DONE
