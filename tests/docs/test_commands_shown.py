"""Command lines that documents show: the program understands each of them, and those that are cheap run."""

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

import stream_recon as sr
from stream_recon.app.cli.main import COMMANDS, DEFAULT, app
from tests.app.media import quick_preset
from tests.app.program import exit_code
from tests.docs.documents import ROOT, Shown, command_lines, documents, inline_code, name_of, shell_lines

SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"
GROUP: Any = typer.main.get_command(app)
NUMBERS = {"N": "2", "SECONDS": "2", "S": "2"}
"""Placeholders of numbers."""
OTHER_PROGRAMS = {"--constraint", "--json", "--align", "--gpus", "--user", "--rm", "--torch-backend", "--pip-args"}
CHEAP_EXPORTS = ("trajectory", "depth", "transforms", "colmap", "glb", "html")


def understood(words: tuple[str, ...]) -> None:
    """Raises typer's error where the program does not understand the words."""
    words = tuple(NUMBERS.get(word, word) for word in words)
    if not words:
        return
    name, rest = (words[0], words[1:]) if words[0] in COMMANDS else (DEFAULT, words)
    if words[0] in {option for parameter in GROUP.params for option in parameter.opts}:
        return
    with contextlib.suppress(typer.Exit):  # --help and --version
        GROUP.commands[name].make_context(name, list(rest))


def problem(shown: Shown) -> str | None:
    try:
        understood(shown.words)
    except Exception as error:  # noqa: BLE001  # of the command line's own parser
        is_short = not shown.is_whole and type(error).__name__ in ("MissingParameter", "BadOptionUsage")
        return None if is_short else f"{shown}: {error}"
    return None


def test_the_program_understands_each_command_line() -> None:
    lines = command_lines()
    assert len(lines) > 80
    problems = [text for text in map(problem, lines) if text]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("words", [("video.mp4", "--no-such-option"), ("vieww", "a", "b"), ("export", "a")])
def test_a_command_line_that_is_wrong_is_noticed(words: tuple[str, ...]) -> None:
    assert problem(Shown("README.md", words))


def test_each_option_in_the_text_exists() -> None:
    known = {"--help", "--install-completion", *OTHER_PROGRAMS}
    for command in GROUP.commands.values():
        known |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = []
    for path in documents():
        name = name_of(path)
        # Releases of the past, and options of scripts.
        if name == "CHANGELOG.md" or name.startswith(("scripts/", "models/", "CONTRIBUTING")):
            continue
        options = {option for code in inline_code(path) for option in re.findall(r"^--[a-z][a-z-]*", code)}
        unknown += [f"{name}: {option}" for option in sorted(options - known)]
    assert not unknown, "\n".join(unknown)


def test_each_script_in_a_shell_block_exists() -> None:
    for path in documents():
        for words in shell_lines(path):
            for word in words[:2]:
                if word.startswith(("scripts/", ".ci/")):
                    assert (ROOT / word).exists(), f"{name_of(path)}: {word}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the videos and results that documents name, of a few frames of the sample."""
    folder = tmp_path_factory.mktemp("shown")
    shutil.copy(SAMPLE, folder / "video.mp4")
    result = folder / "video-recon"
    preset = quick_preset(folder)
    sr.reconstruct(folder / "video.mp4", result, preset=preset, max_frames=8, mapping="off", mesh=False, device="cpu")
    shutil.copytree(result, folder / "room-recon")
    return folder


def is_cheap(words: tuple[str, ...]) -> bool:
    """Whether a command takes a second with a small result and writes nothing outside the folder."""
    if words[0] == "export":
        is_small = not {"--dense", "--max-side"} & set(words)
        return words[1] in ("video-recon", "room-recon") and words[3] in CHEAP_EXPORTS and is_small
    return words in (("datasets",), ("--version",)) or (words[:2] == ("plan", "video.mp4") and "--memory" in words)


@pytest.mark.slow
def test_cheap_ones_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    cheap = [shown for shown in command_lines() if shown.words and is_cheap(shown.words)]
    first_of_each_kind = {(shown.words[0], *shown.words[3:4]): shown for shown in reversed(cheap)}
    assert len(first_of_each_kind) > 7
    for shown in first_of_each_kind.values():
        assert exit_code(monkeypatch, *shown.words) == 0, f"{shown}: {capfd.readouterr().err}"
