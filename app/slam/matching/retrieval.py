"""Which keyframes look alike, wherever the poses are: VLAD (Jegou et al., CVPR 2010) over the video's own words."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.matching.features import Features

WORDS = 64
TRAINING = 20_000
"""Descriptors that the words are learnt from, drawn from all keyframes."""
STRONGEST = 600
"""Features of a keyframe that are looked at."""


def likeness(features: Sequence[Features], seed: int = 0) -> NDArray[np.float32]:
    """Cosines [N, N] of the keyframes' descriptors; 0 for those without features."""
    words = learn_words(features, seed)
    if words is None:
        return np.zeros((len(features), len(features)), np.float32)
    return cosines(np.stack([described(each, words) for each in features]))


def learn_words(features: Sequence[Features], seed: int = 0) -> NDArray[np.float32] | None:
    """Centres [WORDS, 128] of the descriptors; None where these are too few."""
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


def cosines(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, N] of what `described` gave for all keyframes."""
    # What all keyframes share says nothing about any of them.
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.asarray(vectors @ vectors.T, np.float32)


def described(features: Features, words: NDArray[np.float32]) -> NDArray[np.float32]:
    """How a keyframe looks: a vector [WORDS * 128]."""
    return _vlad(features.descriptors[:STRONGEST], words)


def _vlad(descriptors: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.float32]:
    total = np.zeros((WORDS, 128), np.float32)
    if len(descriptors):
        nearest = (descriptors @ words.T - 0.5 * np.square(words).sum(axis=1)).argmax(axis=1)
        counts = np.bincount(nearest, minlength=WORDS).astype(np.float32)
        belongs = (nearest == np.arange(WORDS)[:, None]).astype(np.float32)
        total = belongs @ descriptors - counts[:, None] * words
    # Each word by itself, or bursts of one texture outweigh the rest (Arandjelovic and Zisserman, CVPR 2013).
    total /= np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
    return total.reshape(-1)
