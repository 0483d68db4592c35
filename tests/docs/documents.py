"""Documents of the repository, and what they show."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SKIPPED = {".git", ".venv", ".venv-docs", "site", "build", "dist", "out", "runs"}


@dataclass(frozen=True)
class Shown:
    """A command line that a document shows: its words after the program's name."""

    document: str
    words: tuple[str, ...]
    is_whole: bool = True
    """False in the text, where arguments may be left out."""

    def __str__(self) -> str:
        return f"{self.document}: stream-recon {shlex.join(self.words)}"


def documents() -> list[Path]:
    """Markdown files of the repository."""
    paths = (path for path in sorted(ROOT.rglob("*.md")) if not SKIPPED & set(path.relative_to(ROOT).parts))
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(ROOT).parts[:-1])]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, *languages: str) -> list[str]:
    """Code blocks of a document in one of the languages."""
    found = FENCED.findall(path.read_text(encoding="utf-8"))
    return [textwrap.dedent(code) for _, language, code in found if language in languages]


def inline_code(path: Path) -> list[str]:
    """Code within the text of a document; a bar in a table is escaped there."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    return [code.replace("\\|", "|") for code in INLINE.findall(text)]


def shell_lines(path: Path) -> Iterator[list[str]]:
    """Commands in a document's shell blocks, as words."""
    for block in blocks(path, "bash", "sh", "shell"):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in lexer:
                if set(word) <= set("|&;"):
                    yield words
                    words = []
                else:
                    words.append(word)
            yield words


def command_lines() -> list[Shown]:
    """All command lines of the program in documents: in shell blocks, in the text, in units of systemd."""
    shown: dict[Shown, None] = {}
    for path in documents():
        units = [shlex.split(line) for block in blocks(path, "ini") for line in re.findall(r"ExecStart=(.+)", block)]
        in_text = [shlex.split(code) for code in inline_code(path) if code.startswith("stream-recon ")]
        for lines, is_whole in (([*shell_lines(path), *units], True), (in_text, False)):
            for words in map(_arguments, lines):
                if words is not None:
                    shown[Shown(name_of(path), words, is_whole)] = None
    return list(shown)


def _arguments(words: list[str]) -> tuple[str, ...] | None:
    """Words after the program's name; None where another program runs."""
    if words[:2] == ["docker", "run"]:
        at = next((at for at, word in enumerate(words) if re.fullmatch(r"stream-recon(:\w+)?", word)), None)
        return None if at is None else tuple(words[at + 1 :])
    if words[:3] == ["python", "-m", "stream_recon"]:
        return tuple(words[3:])
    if words and words[0].rpartition("/")[2] == "stream-recon":
        return tuple(words[1:])
    return None
