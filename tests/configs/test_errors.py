"""Messages on missing libraries."""

import re
from pathlib import Path

from stream_recon.configs import errors
from stream_recon.configs.errors import missing_library

ROOT = Path(__file__).parents[2]


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    assert str(missing_library("--x", "a", "b")) == "--x needs a and b: pip install a b"
    otherwise = missing_library("x", "a", "b", "c", otherwise="use y")
    assert str(otherwise) == "x needs a, b and c: pip install a b c, or use y"


def test_all_messages_on_libraries_are_made_in_one_place() -> None:
    """The package is on no index: an extra of its name cannot be installed from anywhere."""
    texts = [p for folder in ("app", "cache", "configs", "models", "docs") for p in (ROOT / folder).rglob("*.*")]
    texts = [ROOT / "README.md", *(p for p in texts if p.suffix in (".py", ".md", ".js", ".html"))]
    assert len(texts) > 300
    assert not [p for p in texts if "stream-recon[" in p.read_text()]
    code = [p for p in texts if p.suffix == ".py" and p.name != Path(errors.__file__).name]
    assert not [p for p in code if re.search(r"pip\w* install", p.read_text())]
