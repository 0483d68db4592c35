"""gsplat's rasterizer next to the plain one, and a training with it; needs a GPU."""

import pytest
import torch

from stream_recon.app.splat.config import CorrectionConfig
from stream_recon.app.splat.corrections import Corrections
from stream_recon.app.splat.rasterizer import draw_gsplat, require_gsplat
from stream_recon.app.splat.trainer import Trainer, TrainOptions, train
from tests.app.splat.blobs import SIZE, K, blob_scene, blob_splats, tensors
from tests.app.splat.plain import draw_plainly

pytestmark = pytest.mark.gpu


def test_it_draws_what_the_plain_rasterizer_draws_with_the_same_gradients() -> None:
    pytest.importorskip("gsplat")
    require_gsplat()
    found = {}
    for name, draw, device in (("plain", draw_plainly, "cpu"), ("gsplat", draw_gsplat, "cuda")):
        gaussians = {
            key: torch.nn.Parameter(value.detach().to(device)) for key, value in tensors(blob_splats()).items()
        }
        corrections = Corrections(1, torch.ones(1, dtype=torch.bool).numpy(), torch.device(device), CorrectionConfig())
        pose = corrections.pose(0, torch.eye(4, device=device))
        drawing = draw(gaussians, pose, torch.from_numpy(K).float().to(device), SIZE, 0)
        weight = torch.linspace(0, 1, SIZE[0], device=device)[:, None]
        (drawing.rgb * weight).mean().backward()  # type: ignore[no-untyped-call]
        gradients = gaussians["means"].grad, corrections.poses.grad, corrections.log_focal.grad
        assert all(gradient is not None for gradient in gradients)
        parts = (drawing.rgb, drawing.depth, drawing.alpha, *gradients)
        found[name] = [part.detach().cpu() for part in parts if part is not None]
    errors = [
        float(torch.linalg.norm(plain - fast) / torch.linalg.norm(plain))
        for plain, fast in zip(found["plain"], found["gsplat"], strict=True)
    ]
    # Colour, depth, opacity, and the gradients of positions, pose and focal length.
    assert max(errors) < 0.1, errors


def test_a_training_explains_images_it_has_not_seen() -> None:
    pytest.importorskip("gsplat")
    require_gsplat()
    options = TrainOptions(steps=300, max_splats=200, sh_degree=1)
    trainer = Trainer(blob_scene(), options, torch.device("cuda"), draw_gsplat)
    before, after = trainer.measure().psnr, train(trainer).psnr
    assert before is not None and after is not None and after > before + 5
    assert len(trainer.model) <= 200
