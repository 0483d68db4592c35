"""The names of ``import stream_recon``: complete, described, typed, and cheap to import."""

import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest

import stream_recon as sr

NAMES = [name for name in sr.__all__ if name != "__version__"]


def functions_of(value: object) -> Iterator[object]:
    """A public function, or the public methods and properties that a class itself defines."""
    if not inspect.isclass(value):
        yield value
        return
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield member.fget
        elif isinstance(member, classmethod | staticmethod):
            yield member.__func__
        elif inspect.isfunction(member):
            yield member


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_and_its_methods_are_described_and_typed(name: str) -> None:
    value = getattr(sr, name)
    assert inspect.getdoc(value), name
    for function in functions_of(value):
        assert inspect.isfunction(function)
        assert function.__doc__, f"{function.__qualname__} has no docstring"
        parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
        missing = {*parameters, "return"} - set(function.__annotations__)
        assert not missing, f"{function.__qualname__}: no annotation of {missing}"


def test_completion_lists_the_public_names() -> None:
    assert dir(sr) == sorted(sr.__all__)


def test_the_import_loads_nothing_heavy() -> None:
    script = "import sys, stream_recon\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "cv2", "numpy"} & set(loaded)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = sr.nothing_such
