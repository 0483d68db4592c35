"""The names of ``import stream_recon``: complete, described, typed, and cheap to import."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
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


SHAPE = re.compile(r"\[[\w, x]+\]")
UNITS = {
    r"timestamps?|\w*seconds": r"second",
    r"positions|poses|points|depth|length|cloud": r"unit|scale|metre|camera to world|optical axis",
}
"""What the description of a name says."""


def described(value: object) -> Iterator[tuple[str, str, str]]:
    """Name, type and description of each public thing that has values: results, parameters and fields."""
    about = inspect.getdoc(value) or ""
    for function in functions_of(value):
        assert inspect.isfunction(function)
        words = f"{about} {function.__doc__}"
        for name, kind in function.__annotations__.items():
            yield function.__name__ if name == "return" else name, str(kind), words
    if inspect.isclass(value):
        (tree,) = ast.parse(textwrap.dedent(source := inspect.getsource(value))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own = textwrap.dedent(source).splitlines()[node.lineno - 1]
                below = ast.unparse(after) if isinstance(after, ast.Expr) else ""
                yield node.target.id, ast.unparse(node.annotation), f"{about} {own.partition('#')[2]} {below}"


@pytest.mark.parametrize("name", NAMES)
def test_arrays_have_shapes_and_quantities_units(name: str) -> None:
    for what, kind, words in described(getattr(sr, name)):
        if "ndarray" in kind or "NDArray" in kind:
            assert SHAPE.search(words), f"{name}, {what}: no shape"
        for quantity, unit in UNITS.items():
            if re.fullmatch(quantity, what) and ("float" in kind or "ndarray" in kind or "NDArray" in kind):
                assert re.search(unit, words, re.IGNORECASE), f"{name}, {what}: no unit"


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_named(name: str) -> None:
    for function in functions_of(getattr(sr, name)):
        assert inspect.isfunction(function)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
                if raised in NAMES:
                    assert raised in (function.__doc__ or ""), f"{function.__qualname__} raises {raised}"


def test_completion_lists_the_public_names() -> None:
    assert dir(sr) == sorted(sr.__all__)


def test_the_import_loads_nothing_heavy() -> None:
    script = "import sys, stream_recon\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "cv2", "numpy"} & set(loaded)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = sr.nothing_such
