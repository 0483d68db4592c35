"""Changes to a valid file, one element at a time, and the one judgement of what a reader makes of each.

A reader never turns a change into another result silently: it reads a mutant as the original, refuses it by the name of
what changed, or a warning names that. A reader's test makes mutants of its kind of file and asks `silently_other`:

>>> assert silently_other(read, of_tree({"fx": 1, "fy": 1}), expected=(1, 1), errors=InputError) == []
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MARK = "zzz"
"""What a renamed or added element is called with: no reader knows it."""


@dataclass(frozen=True)
class Mutant(Generic[T]):
    """A changed file. ``names``: a refusal or warning must contain one of them, in any case of letters."""

    change: str
    names: tuple[str, ...]
    content: T

    def __str__(self) -> str:
        return f"{self.change} {self.names[0]}"


def silently_other(
    read: Callable[[Any], tuple[Any, Sequence[str]]],
    mutants: Iterable[Mutant[Any]],
    expected: Any,
    errors: type[Exception] | tuple[type[Exception], ...],
    same: Callable[[Any, Any], bool] = lambda one, other: bool(one == other),
) -> list[str]:
    """The mutants that are read as something else, or refused, without a word of what changed; must be empty.

    Args:
        read: content to result and warnings.
        expected: the result of the unchanged file.
        errors: how the reader refuses; any other exception is raised.
    """
    wrong = []
    for mutant in mutants:
        try:
            found, said = read(mutant.content)
        except errors as error:
            found, said = None, [str(error)]
            outcome = f"refused: {error}"
        else:
            if same(found, expected):
                continue
            outcome = f"read as {found}, with warnings {list(said)}"
        text = " ".join(said).casefold()
        if not any(name.casefold() in text for name in mutant.names):
            wrong.append(f"{mutant}: {outcome}"[:600])
    return wrong


def of_tree(tree: Any, lists: bool = True) -> Iterator[Mutant[Any]]:
    """Mutants of nested dictionaries and lists: YAML, JSON, XML. ``lists``: also lengthen and shorten lists."""
    for path, node in _nodes(tree):
        above = tuple(str(name) for name in reversed(path) if isinstance(name, str))
        if isinstance(node, dict):
            yield Mutant("added a key to", (MARK, *above), _changed(tree, path, {**node, MARK: 7.5}))
            yield Mutant("reversed", (*above, "order"), _changed(tree, path, dict(reversed(node.items()))))
            for key in node:
                renamed = {name + MARK if name == key else name: value for name, value in node.items()}
                less = {name: value for name, value in node.items() if name != key}
                yield Mutant("renamed", (str(key), *above), _changed(tree, path, renamed))
                yield Mutant("removed", (str(key), *above), _changed(tree, path, less))
        elif isinstance(node, list) and node and lists:
            yield Mutant("added to the list", above, _changed(tree, path, [*node, copy.deepcopy(node[-1])]))
            yield Mutant("removed from the list", above, _changed(tree, path, node[:-1]))


def of_scalars(tree: Any, values: Sequence[Any] = ("abc", None, [], {}, "nan")) -> Iterator[Mutant[Any]]:
    """Mutants whose numbers and words are replaced by what they cannot be; of lists the first one."""
    for path, node in _nodes(tree):
        if not isinstance(node, dict | list) and not any(isinstance(name, int) and name for name in path):
            names = tuple(str(name) for name in reversed(path) if isinstance(name, str))
            for value in values:
                yield Mutant(f"put {value!r} for", names, _changed(tree, path, value))


def of_lines(text: str, comment: str | None = "#") -> Iterator[Mutant[str]]:
    """Mutants of a file of lines; each line's first word is its name. ``comment``: what begins one, if any does."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name = (line.replace(":", " ").replace(",", " ").split() or ["line"])[0]
        before, after = lines[:number], lines[number + 1 :]
        yield Mutant("removed line", (name,), "\n".join([*before, *after]) + "\n")
        yield Mutant("repeated line", (name,), "\n".join([*before, line, line, *after]) + "\n")
        yield Mutant("added a line after", (MARK, name), "\n".join([*before, line, f"{MARK} 7.5", *after]) + "\n")
        if comment is not None and not line.rstrip().endswith("|"):
            yield Mutant("commented", (name,), "\n".join([*before, f"{line}  {comment} 7.5", *after]) + "\n")
            above = f"{comment} {MARK}: 7.5"
            yield Mutant("commented above", (name,), "\n".join([*before, above, line, *after]) + "\n")


def of_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Mutant[list[list[str]]]]:
    """Mutants of a table (CSV) as rows with the header first: columns renamed, removed, added, and in other orders."""
    table = [list(header), *(list(row) for row in rows)]
    for at, name in enumerate(header):
        renamed = [[*header[:at], name + MARK, *header[at + 1 :]], *table[1:]]
        yield Mutant("renamed column", (name,), renamed)
        yield Mutant("removed column", (name,), [row[:at] + row[at + 1 :] for row in table])
        yield Mutant("moved to the end", (name,), [row[:at] + row[at + 1 :] + [row[at]] for row in table])
        extra = [[*row[:at], MARK if not number else "7.5", *row[at:]] for number, row in enumerate(table)]
        yield Mutant("added a column before", (MARK, name), extra)


def of_parts(parts: Sequence[tuple[str, T]]) -> Iterator[Mutant[list[tuple[str, T]]]]:
    """Mutants of a sequence of named parts: boxes of a container, chunks, files of a folder or an archive."""
    for at, (name, content) in enumerate(parts):
        before, after = list(parts[:at]), list(parts[at + 1 :])
        yield Mutant("renamed part", (name,), [*before, (MARK[: len(name)].ljust(len(name), "z"), content), *after])
        yield Mutant("removed part", (name,), [*before, *after])
        yield Mutant("repeated part", (name,), [*before, (name, content), (name, content), *after])
        yield Mutant("moved part to the end of", (name,), [*before, *after, (name, content)])


def _nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, tree
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from _nodes(child, (*path, key))


def _changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a tree with another value at a path."""
    if not path:
        return value
    other = copy.copy(tree)
    other[path[0]] = _changed(tree[path[0]], path[1:], value)
    return other
