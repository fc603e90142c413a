"""Random choices that are the same on every machine and under every Python.

Only ``Random.random`` is used, whose stream Python guarantees, and only arithmetic that IEEE 754
fixes.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Chance:
    """A stream of choices that is a function of ``key``."""

    def __init__(self, *key: object) -> None:
        self._draw = random.Random(" ".join(map(str, key))).random

    def happens(self, probability: float) -> bool:
        """True with the given probability."""
        return self._draw() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items, each as likely."""
        return items[int(self._draw() * len(items))]

    def early(self, items: Sequence[Item]) -> Item:
        """One of the items, the first ones much likelier than the last, as words are in a text."""
        draw = self._draw()
        return items[int(draw * draw * len(items))]

    def among(self, weights: dict[Item, float]) -> Item:
        """One of the keys, as likely as its weight is large."""
        left = self._draw() * sum(weights.values())
        chosen = next(iter(weights))
        for item, weight in weights.items():
            if weight:
                chosen = item
            left -= weight
            if left < 0:
                break
        return chosen

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self._draw() * (high - low + 1))
