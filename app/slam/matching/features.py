"""Features of keyframes: SIFT (Lowe, IJCV 2004) with RootSIFT descriptors (Arandjelovic and Zisserman, CVPR 2012).

They are distributed over the image, so that a textured corner or a moving object does not take them all. Image
retrieval is by VLAD (Jegou et al., CVPR 2010) over a vocabulary learned from the video itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from stream_recon.app.slam.frame_data import DepthReader
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, FeatureConfig, VocabularyConfig


@dataclass(frozen=True)
class Features:
    """Features of one keyframe."""

    uv: NDArray[np.float32]  # [N, 2], working pixels
    descriptors: NDArray[np.float32]  # [M, 128], of unit length, of the first M; learned features have none here
    z: NDArray[np.float32]  # [N], the network's depth; 0 where there is none

    def __len__(self) -> int:
        return len(self.uv)

    @property
    def described(self) -> "Features":
        """Those with descriptors."""
        count = len(self.descriptors)
        return self if count == len(self) else Features(self.uv[:count], self.descriptors, self.z[:count])

    def scaled(self, scale: float) -> "Features":
        """The features with depths multiplied by ``scale``."""
        return Features(self.uv, self.descriptors, self.z * np.float32(scale))


NO_DESCRIPTORS = np.zeros((0, 128), np.float32)
NO_FEATURES = Features(np.zeros((0, 2), np.float32), NO_DESCRIPTORS, np.zeros(0, np.float32))


def detect(
    grey: NDArray[np.uint8],
    reader: DepthReader | None,
    count: int = DEFAULT_MATCHING.features.count,
    config: FeatureConfig = DEFAULT_MATCHING.features,
) -> Features:
    """At most ``count`` features of an image, distributed over it; without depth where there is no ``reader``."""
    mask = None if reader is None else reader.detection_mask()
    keypoints, descriptors = _sift(grey, mask, config.described * count, config.contrast)
    if len(keypoints) < count // 4:
        keypoints, descriptors = _sift(grey, mask, config.described * count, config.faint_contrast)
    if descriptors is None or not keypoints:
        return NO_FEATURES
    # The centre of OpenCV's first pixel is (0, 0), ours (.5, .5).
    uv = np.array([k.pt for k in keypoints], np.float32) + np.float32(0.5)
    response = np.array([k.response for k in keypoints])
    # Points with several orientations are listed repeatedly; one is kept.
    order = np.argsort(-response, kind="stable")
    _, first = np.unique(np.round(uv[order], 1), axis=0, return_index=True)
    order = order[np.sort(first)]
    selected = order[select_evenly(uv[order], (grey.shape[1], grey.shape[0]), count, config.cells)]
    root = np.sqrt(descriptors[selected] / np.maximum(descriptors[selected].sum(axis=1, keepdims=True), 1e-6))
    z = np.zeros(len(selected), np.float32) if reader is None else reader.sample(uv[selected])
    return Features(uv[selected], root.astype(np.float32), z)


def _sift(
    grey: NDArray[np.uint8], mask: NDArray[np.uint8] | None, count: int, contrast: float
) -> tuple[Sequence[cv2.KeyPoint], NDArray[np.float32] | None]:
    # Without precise upscaling, positions have a bias proportional to their scale.
    sift = cv2.SIFT.create(nfeatures=count, contrastThreshold=contrast, enable_precise_upscale=True)
    keypoints, descriptors = sift.detectAndCompute(grey, mask)
    return keypoints, None if descriptors is None else np.asarray(descriptors, np.float32)


def select_evenly(
    uv: NDArray[np.floating], size: tuple[int, int], count: int, cells: int = DEFAULT_MATCHING.features.cells
) -> NDArray[np.intp]:
    """Indices of ``count`` of the points [N, 2], given best first: image cells take turns, each with its best one.

    ``cells``: along the longer side.
    """
    if len(uv) <= count:
        return np.arange(len(uv))
    side = max(size) / cells
    cell = (uv[:, 1] // side).astype(np.int64) * cells + (uv[:, 0] // side).astype(np.int64)
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    rank = np.empty(len(uv), np.int64)
    rank[order] = np.arange(len(uv)) - np.repeat(starts, np.diff(starts, append=len(uv)))
    return np.sort(np.lexsort((np.arange(len(uv)), rank))[:count])


def similarity_matrix(
    features: Sequence[Features], config: VocabularyConfig = DEFAULT_MATCHING.vocabulary
) -> NDArray[np.float32]:
    """Cosine similarities [N, N] of the keyframes; 0 without features."""
    words = learn_vocabulary(features, config=config)
    if words is None:
        return np.zeros((len(features), len(features)), np.float32)
    return cosine_similarities(np.stack([vlad(each, words, config) for each in features]))


def learn_vocabulary(
    features: Sequence[Features], seed: int = 0, config: VocabularyConfig = DEFAULT_MATCHING.vocabulary
) -> NDArray[np.float32] | None:
    """Cluster centres [W, 128] of the descriptors; None with too few descriptors."""
    picked = [f.descriptors[: config.strongest] for f in features]
    starts = np.cumsum([0, *(len(d) for d in picked)])
    total = int(starts[-1])
    if total < 4 * config.words:
        return None
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(total, min(config.max_descriptors, total), replace=False))
    sample = np.concatenate(
        [
            d[chosen[(chosen >= start) & (chosen < start + len(d))] - start]
            for d, start in zip(picked, starts, strict=False)
        ]
    )
    shape, words = (len(sample), config.words), sample[random.choice(len(sample), config.words, replace=False)]
    for _ in range(config.rounds):
        nearest = _nearest_word(sample, words)
        belongs = csr_matrix((np.ones(len(sample), np.float32), nearest, np.arange(len(sample) + 1)), shape)
        counts = np.bincount(nearest, minlength=config.words)[:, None]
        words = np.where(counts > 0, (belongs.T @ sample) / np.maximum(counts, 1), words).astype(np.float32)
    return words


def _nearest_word(descriptors: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.intp]:
    """Number [N] of each descriptor's nearest visual word."""
    return np.asarray((descriptors @ words.T - 0.5 * np.square(words).sum(axis=1)).argmax(axis=1), np.intp)


def cosine_similarities(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine similarities [N, N] of all keyframes' VLAD vectors [N, D]."""
    # The mean, common to all keyframes, distinguishes none.
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.asarray(vectors @ vectors.T, np.float32)


def vlad(
    features: Features, words: NDArray[np.float32], config: VocabularyConfig = DEFAULT_MATCHING.vocabulary
) -> NDArray[np.float32]:
    """VLAD vector [W * 128] of a keyframe, from cluster centres [W, 128]."""
    descriptors = features.descriptors[: config.strongest]
    total = np.zeros((len(words), 128), np.float32)
    if len(descriptors):
        nearest = _nearest_word(descriptors, words)
        counts = np.bincount(nearest, minlength=len(words)).astype(np.float32)
        belongs = (nearest == np.arange(len(words))[:, None]).astype(np.float32)
        total = belongs @ descriptors - counts[:, None] * words
    # Normalized per word, or bursts of one texture would dominate (Arandjelovic and Zisserman, CVPR 2013).
    total /= np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
    return total.reshape(-1)
