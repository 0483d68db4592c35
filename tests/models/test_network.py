import pytest
import torch

from stream_recon.models.network import Prediction, StreamingNetwork
from tests.networks import tiny_preset


def test_unsure_pixels_keep_their_order() -> None:
    raw = torch.linspace(-30, 3, 50)
    dense = torch.stack([torch.zeros(50), raw]).view(1, 1, 2, 5, 10)
    nothing = torch.empty(0)
    pose = torch.zeros(1, 1, 1, 9)
    prediction = Prediction(pose, dense, nothing, nothing, pose[-1], dense[:, :, 0])
    confidence = prediction.confidence.flatten()
    assert (confidence.diff() > 0).all()
    torch.testing.assert_close(1 + confidence, prediction.depth_conf.flatten())


@pytest.mark.parametrize("learns", [True, False])
def test_a_depth_head_is_compiled_only_where_it_learns(learns: bool) -> None:
    network = StreamingNetwork(tiny_preset().network)
    network.depth_head.requires_grad_(learns)
    network.compile_for_training()
    assert (network.depth_head._compiled_call_impl is not None) is learns
