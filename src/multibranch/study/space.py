"""What a search may choose: the key `search` of a study file."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from multibranch.errors import UserError


@dataclass
class Search:
    """What `study search` may choose for every layer, and how long it may try."""

    branches: list[int] = field(default_factory=lambda: [1, 2, 3])
    drop_branch: list[float] = field(default_factory=lambda: [0.0, 0.4])
    drop_ffn: list[float] = field(default_factory=lambda: [0.0, 0.3])
    ffn_branches: list[int] | None = None
    drop_kind: list[str] = field(default_factory=lambda: ["branch", "head"])
    layers_together: int = 1
    trials: int = 30
    updates: int | None = None
    first_trials: int = 8
    warm_up: int = 2

    def check(self, where: str) -> None:
        """Refuse what no proposal could be made of."""
        kinds = ("branch", "head")
        limits: dict[str, Callable[[Any], bool]] = {
            "branches": lambda value: value >= 1,
            "ffn_branches": lambda value: value is None or value >= 1,
            "drop_branch": lambda value: 0 <= value < 1,
            "drop_ffn": lambda value: 0 <= value < 1,
            "drop_kind": lambda value: value in kinds,
            "layers_together": lambda value: value >= 1,
            "trials": lambda value: value >= 1,
            "updates": lambda value: value is None or value >= 1,
            "first_trials": lambda value: value >= 0,
            "warm_up": lambda value: value >= 0,
        }
        for name, allowed in limits.items():
            value = getattr(self, name)
            if value == []:
                raise UserError(f"{where}.{name} is empty: give at least one value")
            if name in ("drop_branch", "drop_ffn") and len(value) > 2:
                raise UserError(f"{where}.{name}: give from and to, not {len(value)} rates")
            for one in value if isinstance(value, list) else [value]:
                if not allowed(one):
                    raise UserError(f"{where}.{name}: {one} cannot be searched")

    def completed(self, ffn_branches: int | None) -> "Search":
        """With what the file leaves to what trials start from.

        ffn_branches: N_f of the Transformer that they start from; None from scratch.
        """
        usual = [1, 2] if ffn_branches is None else [ffn_branches]
        return replace(self, ffn_branches=usual if self.ffn_branches is None else self.ffn_branches)
