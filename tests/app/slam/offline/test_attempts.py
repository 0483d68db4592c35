"""Choice among attempts at a map."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from stream_recon.app.slam.offline.attempts import Attempt, choose


def attempt(*, invites: bool, preferred: bool = False) -> Attempt:
    """An attempt that may invite another one, and may be preferred to those before."""
    stub: Any = SimpleNamespace(invites_another=invites, is_preferred_to=lambda other: preferred)
    return cast(Attempt, stub)


def counted(attempts: list[Attempt], made: list[Attempt]) -> Iterator[Attempt]:
    for each in attempts:
        made.append(each)
        yield each


def test_a_later_attempt_is_only_made_where_the_first_one_invites_it() -> None:
    certain, doubtful, other = attempt(invites=False), attempt(invites=True), attempt(invites=False)
    made: list[Attempt] = []
    assert choose(counted([certain, other], made)) is certain and made == [certain]
    made.clear()
    assert choose(counted([doubtful, other], made)) is doubtful and made == [doubtful, other]


def test_the_evidence_decides_between_two() -> None:
    first, better = attempt(invites=True), attempt(invites=False, preferred=True)
    assert choose(iter([first, better])) is better
    assert choose(iter([first])) is first


def test_there_may_be_none() -> None:
    assert choose(iter([])) is None
