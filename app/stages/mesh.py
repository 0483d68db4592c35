"""A textured mesh as a stage."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import MESH_NAME, read_run
from stream_recon.app.result.run_record import MESH, RUN_NAME
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.stage import Stage, StageContext
from stream_recon.configs.errors import NoSurfaceError


@dataclass(frozen=True)
class MeshStage(Stage):
    """``mesh.glb``. A result in which no surface is visible gets none, which is no error."""

    name = "mesh"
    stopped = "stopped: the result is complete without a mesh; 'stream-recon export' makes one"

    @classmethod
    def of(cls, options: RunOptions) -> "MeshStage | None":
        return MeshStage() if options.mesh else None

    def is_done(self, context: StageContext) -> bool:
        return (context.folder / MESH_NAME).exists()

    def run(self, context: StageContext) -> Sequence[str]:
        from stream_recon.app.mesh.build import write_result_mesh

        def progress(done: int, total: int) -> None:
            context.observer.on_share("mesh", done / total)

        try:
            report = write_result_mesh(context.result, progress, context.cancel, context.max_bytes)
        except NoSurfaceError as error:
            return [f"no mesh: {error}"]
        record = {**read_run(context.folder), MESH: asdict(report)}
        replace_json(context.folder / RUN_NAME, record)
        textures = f", textures of {report.views} frames" if report.views else ""
        return [f"mesh: {MESH_NAME}, {report.triangles} triangles{textures}, {report.size / 1e6:.1f} MB"]
