import torch

from stream_recon.models.prediction import Prediction


def test_unsure_pixels_keep_their_order() -> None:
    raw = torch.linspace(-30, 3, 50)
    dense = torch.stack([torch.zeros(50), raw]).view(1, 1, 2, 5, 10)
    pose = torch.zeros(1, 1, 1, 9)
    prediction = Prediction(pose, dense, pose[-1], dense[:, :, 0])
    confidence = prediction.confidence.flatten()
    assert (confidence.diff() > 0).all()
    torch.testing.assert_close(1 + confidence, prediction.depth_conf.flatten())
