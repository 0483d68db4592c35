"""Files of names and values (YAML, JSON, XML) as a tree whose every element is taken, harmless or refused by name."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

from stream_recon.configs.errors import InputError

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""Pattern of a decimal number."""
_IS_NUMBER = re.compile(NUMBER).fullmatch
MAX_FLOW_YAML = 1 << 20
"""Characters of a text in braces that may be YAML where it is no JSON: YAML is read slowly."""
FLAGS = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class Names:
    """Elements of a table, to be taken one after another; `end` refuses by name those that are left.

    Its methods take the first of several names of one element, and give None where there is none of them. They raise
    InputError, which says the name: a value that is not understood, and several of the names with different values.
    """

    def __init__(self, table: Any, name: str = "the file") -> None:
        if not isinstance(table, Mapping):
            raise InputError(f"{name} is no table of names and values")
        self._left, self.name = dict(table), name
        self.absent: list[str] = []
        """Names of elements that are not there, and whose value is known without them."""

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def __iter__(self) -> Iterator[str]:
        return iter([*self._left])

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._left.items()

    def take(self, *names: str) -> Any:
        found = [name for name in names if name in self._left]
        values = [self._left.pop(name) for name in found]
        for name, value in zip(found[1:], values[1:], strict=True):
            if value != values[0]:
                raise InputError(f"{found[0]} and {name} differ: leave one of them out")
        return values[0] if values else None

    def number(self, *names: str) -> float | None:
        found = self.numbers(*names)
        if found is not None and len(found) != 1:
            raise InputError(f"{names[0]} is no number")
        return None if found is None else found[0]

    def needed(self, *names: str) -> float:
        """A number without which the file says nothing."""
        found = self.number(*names)
        if found is None:
            raise InputError(f"{self.name} has no {names[0]}")
        return found

    def usual(self, name: str, value: float = 0.0) -> float:
        """A number that the file's writer leaves out where it has this value; `absent` tells."""
        found = self.number(name)
        if found is None:
            self.absent.append(name)
        return value if found is None else found

    def named(self, *names: str) -> tuple[str, list[float] | None]:
        """As `numbers`, with the name by which they are there."""
        return self._present(names) or " or ".join(names[:2]), self.numbers(*names)

    def _present(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self), None)

    def numbers(self, *names: str, shape: tuple[int, int] | None = None) -> list[float] | None:
        """Numbers of a list, of lists in a list, of words, or of a matrix with rows and cols, such as ``shape``."""
        name = self._present(names)
        if name is None:
            return None
        value = self.take(*names)
        sides, value = _of_matrix(Names(value, name)) if isinstance(value, Mapping) else (None, value)
        rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        lists = [part if isinstance(part, list) else str(part).split() for part in rows]
        found = [_number(part, name) for row in lists for part in row]
        sides = sides or (len(lists), len(found) // len(lists))
        if len(found) != math.prod(sides):
            raise InputError(f"{name} has {len(found)} numbers, and its rows and cols are {sides[0]} and {sides[1]}")
        if shape is not None and sides not in (shape, (1, math.prod(shape)), (math.prod(shape), 1)):
            raise InputError(f"{name} is {sides[0]} by {sides[1]}, not {shape[0]} by {shape[1]}")
        return found

    def whole(self, *names: str) -> int | None:
        found = self.number(*names)
        if found is not None and found != int(found):
            raise InputError(f"{names[0]} is {found:g}, not a whole number")
        return None if found is None else int(found)

    def word(self, *names: str) -> str | None:
        """A word in lower case; empty and without quotes as the writer has it."""
        value = self.take(*names)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{names[0]} is no word")
        return None if value is None else value.strip().strip("\"'").lower()

    def flag(self, *names: str) -> bool | None:
        value = self.take(*names)
        if value is None:
            return None
        if (found := FLAGS.get(str(value).strip().lower())) is None:
            raise InputError(f"{names[0]} is {str(value)[:40]!r}, neither true nor false")
        return found

    def zero(self, *names: str) -> None:
        """Take numbers that are not applied, and must be 0."""
        for name in names:
            if any(self.numbers(name) or ()):
                raise InputError(f"{name} is not 0, which is not supported: undistort the images with its program")

    def end(self, harmless: str) -> None:
        """Refuse what is left, but for names that match ``harmless``."""
        left = [str(name) for name in self._left if not re.fullmatch(harmless, str(name))]
        if left:
            listed = ", ".join(repr(name[:60]) for name in left[:4])
            more = f" and {len(left) - 4} more" if len(left) > 4 else ""
            raise InputError(
                f"{self.name} has {listed}{more}, not understood: take it out if it says nothing of the camera"
            )


def parse_trees(text: str) -> list[Any]:
    """Documents of a text of JSON, XML or YAML: dictionaries, lists, words; numbers may be words.

    Raises ValueError: it is none of these; InputError: a name stands twice in one table.
    """
    try:
        if text.lstrip().startswith("<"):
            return [_xml_tree(text)]
        if text.lstrip().startswith("{"):
            for plain in (text, re.sub(r"(?m)(^|\s)//.*", "", text)):  # OpenCV writes comments
                with suppress(json.JSONDecodeError):
                    return [json.loads(plain, object_pairs_hook=_table)]
            if len(text) > MAX_FLOW_YAML:
                raise ValueError("it is no JSON")
        return _yaml_trees(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _yaml_trees(text: str) -> list[Any]:
    import yaml

    base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

    class Loader(base):  # type: ignore[misc]
        """All scalars are words, and tags such as ``!!opencv-matrix`` say nothing."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            return _table([tuple(self.construct_object(part, deep=True) for part in pair) for pair in node.value])

    try:
        # OpenCV writes its directive in a way of its own.
        return [tree for tree in yaml.load_all(re.sub(r"(?m)^%YAML:.*", "", text, count=1), Loader) if tree]
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error


def _table(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise InputError("a name is no word")
        if name in table:
            raise InputError(f"{name} stands there twice")
        table[name] = "null" if value is None else value
    return table


def _xml_tree(text: str) -> dict[str, Any]:
    if re.search(r"<!(DOCTYPE|ENTITY)", text):
        raise ValueError("it has a DOCTYPE")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    return {root.tag: _xml_value(root)}


def _xml_value(element: ElementTree.Element) -> Any:
    """Text, or a table of attributes and children; children of one tag are a list."""
    words = " ".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    if not element.attrib and not len(element):
        return words
    table: dict[str, Any] = {**element.attrib, **({"text": words} if words else {})}
    for tag in dict.fromkeys(child.tag for child in element):
        values = [_xml_value(child) for child in element if child.tag == tag]
        if tag in table:
            raise InputError(f"{tag} stands there twice")
        table[tag] = values[0] if len(values) == 1 else values
    return table


def _of_matrix(matrix: Names) -> tuple[tuple[int, int], Any]:
    """Rows and columns, and data, of a matrix as OpenCV and ROS write it; ``sizes``: of one dimension or more."""
    sizes = matrix.numbers("sizes") if "sizes" in matrix else [matrix.needed("rows"), matrix.needed("cols")]
    data = matrix.take("data")
    matrix.end("dt|type_id")
    if data is None or not sizes:
        raise InputError(f"{matrix.name} has no data")
    return (int(sizes[0]), int(math.prod(sizes[1:]))), data


def _number(value: Any, name: str) -> float:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not _IS_NUMBER(str(value).strip()):
        raise InputError(f"{name} has {str(value)[:40]!r}, which is no number")
    return float(value)
