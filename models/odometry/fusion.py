"""Poses from relative motion, corrected by the camera head (a complementary filter)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.odometry.pnp import SUPPORTED
from stream_recon.models.pose import TINY, matrix_to_quaternion, pose_to_matrix, so3_exp, so3_log

ROTATION_GAIN = 1 - 0.97
"""Share of the rotation to the camera head's pose that a keyframe corrects: an error decays within about 33."""
TRANSLATION_GAIN = 1 - 0.99
"""Share of the translation to the camera head's pose that each keyframe corrects. It decays within about 100
keyframes: with depths in one scale, lengths have smaller errors than rotations."""
HEAD_LENGTH_WEIGHT = 0.35
"""Weight of the camera head's length of a motion in the mean of logarithms; the rest is the motion's own."""
MAX_LENGTH_RATIO = 1.5
"""The camera head's length counts as at most this multiple, and at least this fraction, of the motion's own: one wrong
frame of the head must not change the trajectory."""


@dataclass(frozen=True)
class LastPose:
    """Poses of the last keyframe of each of B streams."""

    pose: Tensor  # [B, 9]: the fused pose code
    head_pose: Tensor  # [B, 9]: the camera head's


def fuse_poses(head_pose: Tensor, motion: Tensor, support: Tensor, log_scale: Tensor, last: LastPose | None) -> Tensor:
    """Chain relative motions to poses, and correct each towards the camera head's pose.

    Rotation and direction are the motion's. The length is the geometric mean of the motion's and the head's, whose
    errors are independent, in the scale of the depths, so that both have the same drift. The head's relative motion
    replaces one without support.

    Args:
        head_pose: pose codes [B, S, 9] of the camera head.
        motion, support: [B, S, 3, 4] and [B, S], as `solve_pnp` gives them, to the keyframe before.
        log_scale: [B, S]: logarithms of the factors on the frames' depths (`propagate_depth`).
        last: of the keyframe before the first frame; None: the first frame keeps the head's pose.

    Returns pose codes [B, S, 9], with the head's field of view.
    """
    heads, codes = pose_to_matrix(head_pose), []
    pose = pose_to_matrix(last.pose) if last is not None else heads[:, 0]
    head = pose_to_matrix(last.head_pose) if last is not None else heads[:, 0]
    for frame in range(head_pose.shape[1]):
        if frame == 0 and last is None:
            codes.append(head_pose[:, 0])
            continue
        R_head, t_head = heads[:, frame, :3, :3], heads[:, frame, :3, 3]
        back = head[:, :3, :3].transpose(1, 2)
        R_own, t_own = back @ R_head, (back @ (t_head - head[:, :3, 3])[..., None])[..., 0]
        R_motion, t_motion = motion[:, frame, :, :3], motion[:, frame, :, 3]
        ratio = (t_own.norm(dim=-1) + TINY) / (t_motion.norm(dim=-1) + TINY)
        ratio = ratio.clamp(1 / MAX_LENGTH_RATIO, MAX_LENGTH_RATIO)
        trusted = support[:, frame, None] > SUPPORTED
        t_motion = torch.where(trusted, t_motion * ratio[:, None] ** HEAD_LENGTH_WEIGHT, t_own)
        t_motion = t_motion * log_scale[:, frame, None].exp()
        R_motion = torch.where(trusted[..., None], R_motion, R_own)
        R = pose[:, :3, :3] @ R_motion
        t = pose[:, :3, 3] + (pose[:, :3, :3] @ t_motion[..., None])[..., 0]
        difference = so3_log(R.transpose(1, 2) @ R_head)
        R = R @ so3_exp(difference * ROTATION_GAIN)
        t = t + (t_head - t) * TRANSLATION_GAIN
        codes.append(torch.cat([t, matrix_to_quaternion(R), head_pose[:, frame, 7:]], dim=-1))
        pose, head = pose_to_matrix(codes[-1]), heads[:, frame]
    return torch.stack(codes, dim=1)
