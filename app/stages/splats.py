"""Training of Gaussian splats as a stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.result.folder import CHECKPOINT_NAME, SPLATS_NAME, current_splats
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.stage import Stage, StageContext

if TYPE_CHECKING:
    from stream_recon.app.core.splats import Splats
    from stream_recon.app.splat.job import SplatOptions, SplatReport
    from stream_recon.app.splat.trainer import TrainProgress

MAX_SHOWN = 150_000
"""Most splats that a page gets while they are trained: 5 MB every few seconds."""
STEPS_SHOWN = 20
"""Steps of a training between two updates."""


@dataclass(frozen=True)
class SplatStage(Stage):
    """``splats.ply``. A training that is cancelled keeps what is there, and may go on later."""

    name = "splats"
    options: "SplatOptions | None" = None
    """None: the defaults, and a training that was stopped goes on."""

    @classmethod
    def of(cls, options: RunOptions) -> "SplatStage | None":
        return SplatStage() if options.splat else None

    def check(self) -> None:
        from stream_recon.app.splat.rasterizer import require_gsplat

        require_gsplat()

    def is_done(self, context: StageContext) -> bool:
        return current_splats(context.result) is not None and not (context.folder / CHECKPOINT_NAME).exists()

    def run(self, context: StageContext) -> Sequence[str]:
        from stream_recon.app.splat.job import SplatEvents, SplatOptions, make_splats

        class Events(SplatEvents):
            def on_scene(self, done: int, total: int) -> None:
                context.progress("images")(done, total)

            def on_step(self, progress: "TrainProgress") -> None:
                if progress.step % STEPS_SHOWN and progress.step < progress.steps:
                    return
                measured = "" if progress.psnr is None else f", held-out PSNR {progress.psnr:.1f} dB"
                note = f"{progress.splats} splats{measured}"
                context.observer.on_step("splats", progress.step, progress.steps, note)

            def on_splats(self, splats: "Splats") -> None:
                if context.view is not None:
                    context.view.show_splats(splats, MAX_SHOWN)

        options = self.options or SplatOptions(resume=(context.folder / CHECKPOINT_NAME).exists())
        if context.view is not None:
            context.view.offer_stop(context.cancel.request)
        try:
            report = make_splats(context.folder, options, Events(), context.cancel)
        finally:
            if context.view is not None:
                context.view.offer_stop(None)
        line = described(report, context)
        if not report.is_complete:
            context.observer.on_message(line)
            raise Cancelled
        return [line]


def described(report: "SplatReport", context: StageContext) -> str:
    """A training in one line."""
    measured = "no image held out"
    if report.psnr is not None and report.ssim is not None:
        measured = f"{report.held_out} held-out images: PSNR {report.psnr:.1f} dB, SSIM {report.ssim:.3f}"
    state = f"{report.steps} steps"
    if not report.is_complete:
        state = f"stopped after {report.steps} of {report.wanted_steps} steps, --resume continues"
    path = context.folder / SPLATS_NAME
    return f"splats: {path}, {report.splats} splats, {state}, {report.seconds:.0f} s; {measured}"
