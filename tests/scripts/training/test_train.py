"""The command that trains."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "train.py"


def test_a_run_of_no_steps_leaves_the_weights_that_it_began_with(tmp_path: Path) -> None:
    options = ["--max-steps", "0", "--validate-clips", "0", "--no-compile", "--out", str(tmp_path)]
    run = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.safetensors", "auxiliary.safetensors", "metrics.jsonl"
    }  # fmt: skip
