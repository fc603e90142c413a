"""Which trials are trained together, as one (multibranch.training.together)."""

from collections.abc import Callable, Sequence
from typing import Any

from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.training.stacked import what_must_agree, why_alone


class Companies:
    """Finds company for trials: others of their architecture, vocabulary and recipe.

    Args:
        most: how many are trained together.
        bench: where an experiment is run.
    """

    def __init__(self, most: int, bench: Callable[[Experiment], Bench]) -> None:
        self.most = most
        self.bench = bench
        self.apart: set[str] = set()  # the keys of those that failed together
        self._kinds: dict[str, Any] = {}

    def find(
        self, first: Experiment, ready: Sequence[Experiment], every: Sequence[Experiment]
    ) -> list[Experiment]:
        """The trial, and those that can be trained with it, what others start from before the rest.

        ready: what could be begun now. every: all of the study, or of several.
        """
        kind = self._kind(first) if self.most > 1 else None
        if kind is None:
            return [first]
        others = [one for one in ready if one.key != first.key and self._kind(one) == kind]
        parents = {one.parent.key for one in every if one.parent is not None}
        others.sort(key=lambda one: one.key not in parents)
        return [first, *others[: self.most - 1]]

    def _kind(self, experiment: Experiment) -> Any:
        """What those that can be trained together have in common; None: it is trained alone."""
        key = experiment.key
        if key in self.apart:
            return None
        if key not in self._kinds:
            self._kinds[key] = _kind(self.bench(experiment), experiment)
        return self._kinds[key]


def _kind(bench: Bench, experiment: Experiment) -> tuple[Any, ...] | None:
    if experiment.start not in ("scratch", "continued", "proximal"):
        return None
    if bench.task(experiment) == "understanding":
        return None
    config, text = bench.config(experiment), bench.open(experiment).text
    if why_alone(config.train) or config.data.layout != "packed":
        return None
    settings = config.model.settings(text.source_size, text.target_size)
    return experiment.architecture, repr(what_must_agree(settings, config.train))
