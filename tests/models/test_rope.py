import torch

from stream_recon.models.rope import frame_rotation, global_rotation, rotate_frame, rotate_global

CPU = torch.device("cpu")


def test_rotations_keep_lengths() -> None:
    x = torch.randn(2, 12, 3, 64)
    for y in (
        rotate_frame(x, frame_rotation((2, 3), 6, 64, CPU)),
        rotate_global(x, global_rotation(torch.tensor([5, 9]), (2, 3), 6, 64, 20)),
    ):
        torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))


def test_scores_across_frames_depend_on_the_distance_in_time_alone_even_far_out() -> None:
    q, k = torch.randn(1, 12, 1, 64), torch.randn(1, 12, 1, 64)

    def scores(t: int, s: int) -> torch.Tensor:
        turned = [
            rotate_global(x, global_rotation(torch.tensor([at]), (2, 3), 6, 64, 20))[0, :, 0]
            for x, at in ((q, t), (k, s))
        ]
        return turned[0] @ turned[1].T

    torch.testing.assert_close(scores(7, 2), scores(100_005, 100_000), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scores(7, 2), scores(8, 2))


def test_specials_stand_apart_from_all_patches() -> None:
    cos, _ = frame_rotation((2, 3), 6, 64, CPU)
    assert (cos[:6] == 1).all()
    assert (cos[6:] != 1).any(dim=-1).all()
