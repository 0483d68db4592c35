"""Choice among attempts at a map."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

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


@pytest.mark.parametrize("final", ["from_images", "refined_before", "rig", "many", ""])
def test_a_map_that_loses_everywhere_invites_another_unless_there_is_nothing_else_to_try(final: str) -> None:
    stub: Any = SimpleNamespace(
        is_contradicted=False,
        data=SimpleNamespace(keyframes=range(9 if final == "many" else 3), rig=0 if final == "rig" else None),
        config=SimpleNamespace(max_unordered=5),
        from_images=final == "from_images",
        test=SimpleNamespace(refined_before=final == "refined_before"),
        judgement=SimpleNamespace(selection=SimpleNamespace(fallback=np.ones(3, bool))),
    )
    invites = vars(Attempt)["invites_another"].fget
    assert invites(stub) == (not final)
