"""Images of trained splats from any place."""

from dataclasses import astuple

import numpy as np
import torch
from numpy.typing import NDArray

from stream_recon.app.core.splats import Splats
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.render.film import Painter
from stream_recon.app.export.render.raster import BACKGROUND
from stream_recon.app.splat.rasterizer import Gaussians, Rasterizer, draw_gsplat


def gaussians_of(splats: Splats, device: torch.device) -> Gaussians:
    """Splats as the parameters of a rasterizer."""
    means, scales, quats, opacities, sh = astuple(splats)
    values = {"means": means, "scales": scales, "quats": quats, "opacities": opacities}
    values |= {"sh0": sh[:, :1], "shN": sh[:, 1:]}
    return {
        name: torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(value)).to(device), requires_grad=False)
        for name, value in values.items()
    }


def splat_painter(splats: Splats, device: torch.device, draw: Rasterizer = draw_gsplat) -> Painter:
    """What draws splats over the background of films, with lengths in units of their median distance.

    Rasterizers leave out what is nearer than a fixed depth.
    """
    centre = np.median(splats.means, axis=0).astype(np.float64)
    unit = max(float(np.median(np.linalg.norm(splats.means - centre, axis=1))), 1e-9)
    gaussians = gaussians_of(splats.scaled(-centre / unit, 1 / unit), device)
    background = torch.tensor(BACKGROUND, device=device) / 255

    @torch.no_grad()
    def paint(T_world_camera: NDArray[np.float64], camera: Intrinsics, size: tuple[int, int]) -> NDArray[np.uint8]:
        T = T_world_camera.copy()
        T[:3, 3] = (T[:3, 3] - centre) / unit
        K = torch.from_numpy(camera.matrix).float().to(device)
        T_camera_world = torch.from_numpy(np.linalg.inv(T)).float().to(device)
        drawing = draw(gaussians, T_camera_world, K, size, splats.sh_degree)
        rgb = drawing.rgb + (1 - drawing.alpha[..., None]) * background
        return np.asarray((255 * rgb.clamp(0, 1)).round().byte().cpu().numpy())

    return paint
