"""Image retrieval among keyframes: VLAD (Jegou et al., CVPR 2010) over a vocabulary learned from the video itself."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.matching.features import Features

WORDS = 64
"""Size of the vocabulary; a single video needs few words."""
TRAINING = 20_000
"""Most descriptors that the vocabulary is learned from, which bounds the time of k-means."""
STRONGEST = 600
"""Features of a keyframe that are described; weaker ones are seldom seen again."""


def similarity_matrix(features: Sequence[Features], seed: int = 0) -> NDArray[np.float32]:
    """Cosine similarities [N, N] of the keyframes; 0 without features."""
    words = learn_vocabulary(features, seed)
    if words is None:
        return np.zeros((len(features), len(features)), np.float32)
    return cosine_similarities(np.stack([vlad(each, words) for each in features]))


def learn_vocabulary(features: Sequence[Features], seed: int = 0) -> NDArray[np.float32] | None:
    """Cluster centres [WORDS, 128] of the descriptors; None with too few descriptors."""
    picked = [f.descriptors[:STRONGEST] for f in features]
    starts = np.cumsum([0, *(len(d) for d in picked)])
    total = int(starts[-1])
    if total < 4 * WORDS:
        return None
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(total, min(TRAINING, total), replace=False))
    sample = np.concatenate(
        [
            d[chosen[(chosen >= start) & (chosen < start + len(d))] - start]
            for d, start in zip(picked, starts, strict=False)
        ]
    )
    cv2.setRNGSeed(seed + 1)
    stop = (cv2.TERM_CRITERIA_MAX_ITER, 8, 0.0)
    return np.asarray(cv2.kmeans(sample, WORDS, None, stop, 1, cv2.KMEANS_RANDOM_CENTERS)[2], np.float32)


def cosine_similarities(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine similarities [N, N] of all keyframes' VLAD vectors [N, D]."""
    # The mean, common to all keyframes, distinguishes none.
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.asarray(vectors @ vectors.T, np.float32)


def vlad(features: Features, words: NDArray[np.float32]) -> NDArray[np.float32]:
    """VLAD vector [WORDS * 128] of a keyframe."""
    descriptors = features.descriptors[:STRONGEST]
    total = np.zeros((WORDS, 128), np.float32)
    if len(descriptors):
        nearest = (descriptors @ words.T - 0.5 * np.square(words).sum(axis=1)).argmax(axis=1)
        counts = np.bincount(nearest, minlength=WORDS).astype(np.float32)
        belongs = (nearest == np.arange(WORDS)[:, None]).astype(np.float32)
        total = belongs @ descriptors - counts[:, None] * words
    # Normalized per word, or bursts of one texture would dominate (Arandjelovic and Zisserman, CVPR 2013).
    total /= np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
    return total.reshape(-1)
