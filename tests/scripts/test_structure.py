"""What the bars of the code base count."""

import ast

import pytest


@pytest.mark.parametrize(
    "body, number",
    [
        ("return 1", 1),
        ("return a if b else c", 2),
        ("if a and b or c:\n  pass\n elif d:\n  pass", 5),
        ("for x in y:\n  while z:\n   pass", 3),
        ("try:\n  pass\n except A:\n  pass\n except B:\n  pass", 3),
        ("return [x for x in y if x]", 3),
        ("match a:\n  case 1:\n   pass\n  case _:\n   pass", 3),
        ("def inner():\n  if a:\n   pass", 1),
    ],
)
def test_branches_are_mccabes_number(body: str, number: int) -> None:
    from structure import branches

    (function,) = ast.parse(f"def f():\n {body}").body
    assert isinstance(function, ast.FunctionDef)
    assert branches(function) == number


def test_numbers_and_tuples_of_numbers_are_tuned() -> None:
    from structure import is_number

    found = [is_number(ast.parse(text, mode="eval").body) for text in ("1", "-2.5", "(1, 2)", "2 * 10**9")]
    assert all(found)
    assert not any(is_number(ast.parse(text, mode="eval").body) for text in ("True", "'a'", "()", "f(1)", "(1, 'a')"))


def test_patches_and_private_reads_are_seen() -> None:
    from structure import patches_constant, reads_private

    def expression(text: str) -> ast.expr:
        return ast.parse(text, mode="eval").body

    assert patches_constant(expression('monkeypatch.setattr(module, "LIMIT", 3)'))
    assert patches_constant(expression('monkeypatch.setattr("package.module.LIMIT", 3)'))
    assert patches_constant(expression('mock.patch.object(module, "LIMIT", 3)'))
    assert not patches_constant(expression('monkeypatch.setattr(module, "function", 3)'))
    assert reads_private(expression("thing._inner"))
    assert not any(reads_private(expression(text)) for text in ("self._inner", "thing.__dict__", "thing.outer"))
