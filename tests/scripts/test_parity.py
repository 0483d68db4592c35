"""The parity script on goldens made here (it has to pass on its own outputs and fail on others) and on real ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden" / "tiny.json"


def parity(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "weights" / "parity.py"), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not GOLDEN.is_file(), reason="no reference values here")
def test_the_published_implementation_is_matched(tmp_path: Path) -> None:
    run = parity(GOLDEN)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every_frame" in run.stdout and "interval_3" in run.stdout


@pytest.mark.skipif(not GOLDEN.is_file(), reason="no reference values here")
def test_a_wrong_output_fails(tmp_path: Path) -> None:
    for name in ("tiny.json", "tiny.weights.safetensors"):
        (tmp_path / name).symlink_to(GOLDEN.parent / name)
    outputs = load_file(GOLDEN.parent / "tiny.outputs.safetensors")
    wrong = {"rgb": outputs["rgb"], "every_frame.pose_enc": outputs["every_frame.pose_enc"] + torch.randn(14, 9) * 0.1}
    save_file(wrong, tmp_path / "tiny.outputs.safetensors")
    run = parity(tmp_path / "tiny.json")
    assert run.returncode == 1 and "FAILED" in run.stdout


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({}))
    run = parity(tmp_path / "x.json")
    assert run.returncode == 2 and len(run.stderr.strip().splitlines()) == 1
