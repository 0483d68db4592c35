"""Odometry of the embedded network: relative motion, pose and depth fusion over keyframes."""
