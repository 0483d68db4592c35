"""Command lines where no package of an extra is installed: each works, or names what to install."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.app.result.test_writer import write_run
from tests.docs.documents import ROOT

RUN = """
import contextlib, io, json, sys

hidden, lines = map(json.loads, sys.argv[1:])
sys.modules.update(dict.fromkeys(hidden))
from stream_recon.app.cli.main import main

ends = []
for words in lines:
    sys.argv, errors = ["stream-recon", *words], io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            ends.append((end.code or 0, errors.getvalue()))
print(json.dumps(ends))
"""
WORKING = (
    ("--version",),
    ("datasets",),
    ("export", "video-recon", "--format", "trajectory"),
    ("export", "video-recon", "--format", "transforms"),
)
LACKING = {
    ("serve",): "starlette",
    ("walk.mcap",): "rosbags",
    ("video.mp4", "--publish", "zenoh"): "rosbags",
    ("video.mp4", "--publish", "foxglove"): "foxglove",
    ("photos/",): "pillow-heif",
    ("export", "video-recon", "--format", "rrd"): "rerun",
    ("export", "video-recon", "--format", "ros2bag"): "rosbags",
    ("splat", "video-recon"): "",  # a GPU comes first
}


def extra_modules() -> list[str]:
    """Modules of all packages of extras that are installed here and that the program itself does not need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, extras = project["dependencies"], project["optional-dependencies"]
    packages = {name(line) for lines in extras.values() for line in lines} - set(map(name, own))
    return [module for module, owners in packages_distributions().items() if packages & set(map(name, owners))]


def name(requirement: str) -> str:
    return re.split(r"[<>=; ]", requirement)[0].lower().replace("_", "-")


def test_each_command_line_works_or_names_what_to_install(tmp_path: Path) -> None:
    write_run(tmp_path / "video-recon")
    shutil.copy(ROOT / "app" / "sample" / "walkthrough.mp4", tmp_path / "video.mp4")
    (tmp_path / "walk.mcap").write_bytes(b"\x89MCAP0\r\n" * 2)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(64))
    lines = [*WORKING, *LACKING]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(extra_modules()), json.dumps(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for words, (code, errors) in zip(lines, json.loads(done.stdout), strict=True):
        if words in WORKING:
            assert code == 0, f"{words}: {errors}"
        else:
            assert code == 2 and errors.count("\n") == 1, f"{words}: {errors}"
            assert not LACKING[words] or re.search(rf"pip install .*{LACKING[words]}", errors), f"{words}: {errors}"
