"""Benchmarks of speed, memory and accuracy: `python scripts/bench` lists them.

Nothing is imported here: training of splats needs gsplat, and little of stream-recon.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"
