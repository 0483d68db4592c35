import math

import numpy as np
import pytest

from stream_recon.app.core.types import Frame
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.configs.errors import InputError
from stream_recon.configs.schema import ImageConfig, load_preset

SMALL = load_preset("small").image
FULL = load_preset("lingbot-map").image


def test_sizes_that_weights_were_trained_for() -> None:
    assert plan_image((640, 480), SMALL, 14).network_size == (224, 168)
    assert plan_image((480, 640), SMALL, 14).network_size == (168, 224)
    assert plan_image((640, 480), FULL, 14).network_size == (518, 392)
    # The published rule: width 518, height rounded to a multiple of 14.
    assert plan_image((1920, 1080), FULL, 14).network_size == (518, 294)


@pytest.mark.parametrize("image", [SMALL, FULL])
@pytest.mark.parametrize(
    "size", [(1920, 1080), (1080, 1920), (1000, 1000), (4096, 1024), (1241, 376), (320, 200), (7, 5), (30, 5000)]
)
def test_whole_image_on_a_grid_within_limits(image: ImageConfig, size: tuple[int, int]) -> None:
    plan = plan_image(size, image, 14)
    width, height = plan.network_size
    assert plan.crop == (0, 0, *size)
    assert width % 14 == height % 14 == 0
    assert (width // 14) * (height // 14) <= image.max_patches
    assert max(width, height) <= image.max_side


@pytest.mark.parametrize("size", [(1920, 1080), (1080, 1920), (4096, 1024), (1241, 376), (1000, 1000), (2048, 1024)])
def test_aspect_ratio_is_nearly_kept_without_wasting_patches(size: tuple[int, int]) -> None:
    width, height = plan_image(size, SMALL, 14).network_size
    assert abs(math.log(width / height / (size[0] / size[1]))) < 0.04
    # A picture four times as wide as high cannot use all patches: its longer side is full before.
    assert width * height / 14**2 > 0.8 * min(SMALL.max_patches, 24 * 24 * min(size) / max(size))


def test_transposed_sources_get_transposed_plans() -> None:
    for size in [(1920, 1080), (1241, 376), (640, 480)]:
        assert plan_image(size, FULL, 14).network_size == plan_image(size[::-1], FULL, 14).network_size[::-1]


def test_shrinking_does_not_alias() -> None:
    checker = (np.indices((480, 640)).sum(0) % 2 * 255).astype(np.uint8)
    frame = Frame(0, 0.0, np.repeat(checker[..., None], 3, axis=2))
    small = prepare(frame, plan_image((640, 480), SMALL, 14)).rgb
    assert small.shape == (168, 224, 3) and small.dtype == np.uint8
    assert np.abs(small.astype(int) - 127).max() < 45


@pytest.mark.parametrize("size", [(640, 480), (100, 60), (240, 150), (90, 160)])
def test_content_stays_where_the_transform_says(size: tuple[int, int]) -> None:
    """A bright dot's centre of mass, mapped by the transform's scale, is found in the network's image."""
    width, height = size
    rgb = np.zeros((height, width, 3), np.uint8)
    x, y, half = width // 3, 2 * height // 3, max(2, width // 40)
    rgb[y - half : y + half, x - half : x + half] = 255
    plan = plan_image(size, SMALL, 14)
    image = prepare(Frame(0, 0.0, rgb), plan).rgb[..., 0].astype(float)
    rows, columns = np.indices(image.shape)
    found = ((columns + 0.5) * image).sum() / image.sum(), ((rows + 0.5) * image).sum() / image.sum()
    assert found == pytest.approx((x * plan.scale[0], y * plan.scale[1]), abs=0.3)


def test_a_frame_of_another_size_is_refused() -> None:
    plan = plan_image((640, 480), SMALL, 14)
    with pytest.raises(InputError, match="frame 7 is 320x240 but the first one is 640x480"):
        prepare(Frame(7, 0.0, np.zeros((240, 320, 3), np.uint8)), plan)
