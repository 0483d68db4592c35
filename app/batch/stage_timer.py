"""Where the seconds go: phases that follow one another without a gap, so that they add up to the whole."""

import time

Seconds = dict[str, float]
"""By the names of the phases, in their order."""


class StageTimer:
    """A watch that is told which phase begins; a phase that comes again is added up."""

    def __init__(self, first: str, begun: float | None = None) -> None:
        """``begun``: when the first one did, by `time.monotonic`; None: now."""
        self._seconds: Seconds = {}
        self._name, self._since = first, time.monotonic() if begun is None else begun

    def enter(self, name: str) -> None:
        """The phase so far is over, and another one begins."""
        now = time.monotonic()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now

    @property
    def seconds(self) -> Seconds:
        """Of all phases up to now, in milliseconds' precision."""
        now = time.monotonic()
        under_way = {self._name: self._seconds.get(self._name, 0.0) + now - self._since}
        return {name: round(seconds, 3) for name, seconds in {**self._seconds, **under_way}.items()}
