import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "weights" / "compare_weights.py"
OLD = {"ate_over_path": 0.02, "rpe_rot_deg": 0.5, "absrel": 0.1, "fov_error_deg": 4.0}


def write(folder: Path, **figures: float | None) -> Path:
    folder.mkdir()
    for name in ("near", "far"):
        scores = OLD | (figures if name == "far" else {})
        (folder / f"{name}.json").write_text(json.dumps({"weights_sha256": "x", "sequences": {"room": scores}}))
    return folder


def run(before: Path, after: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, before, after], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_better_means_a_lower_mean_and_nothing_much_worse(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    code, text = run(before, write(tmp_path / "better", ate_over_path=0.01, absrel=0.11))
    assert code == 0 and "\nbetter: x0.928" in text and "worst x1.10, absrel of room (far)" in text
    assert run(before, write(tmp_path / "one_worse", ate_over_path=0.01, absrel=0.12))[0] == 1
    assert run(before, write(tmp_path / "all_worse", rpe_rot_deg=0.51))[0] == 1
    assert run(before, before)[0] == 1


def test_folders_of_different_figures_are_not_compared(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    code, text = run(before, write(tmp_path / "after", absrel=None))
    assert code == 2 and "far/room/absrel" in text
    assert run(before, tmp_path / "none") == (
        2,
        f"compare_weights: {tmp_path / 'none'} holds no figures: write them with stream-recon eval --json\n",
    )
