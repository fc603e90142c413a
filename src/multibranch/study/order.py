"""Which experiment a worker takes next: one rule for every kind of worker.

States are "waiting", "running", "done" and "failed". A shared stage goes before what merely fills a
cell, so that nothing waits long; then what starts from one, whose model may be gone with a machine
that is lent for a time; then what is compiled already; then the order of the study.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from multibranch.study.experiment import Experiment


def takeable(
    experiments: Sequence[Experiment],
    states: Mapping[str, str],
    *,
    here: Callable[[Experiment], bool] = lambda experiment: True,
) -> list[Experiment]:
    """What waits and whose parent is done, and lies here where its model is needed."""
    found = []
    for experiment in experiments:
        if states.get(experiment.key, "waiting") != "waiting":
            continue
        parent = experiment.parent
        if parent is None or (states.get(parent.key) == "done" and here(parent)):
            found.append(experiment)
    return found


def next_experiment(
    experiments: Sequence[Experiment],
    states: Mapping[str, str],
    *,
    group: str = "",
    here: Callable[[Experiment], bool] = lambda experiment: True,
) -> Experiment | None:
    """The experiment to take now, or None when nothing can be taken.

    group: the group of the experiment that the worker ran last.
    """
    children = Counter(e.parent.key for e in experiments if e.parent is not None)
    busy = Counter(e.group for e in experiments if states.get(e.key) == "running")
    ready = takeable(experiments, states, here=here)
    if not ready:
        return None
    order = {experiment.key: place for place, experiment in enumerate(experiments)}

    def rank(experiment: Experiment) -> tuple:
        return (
            not children[experiment.key],
            experiment.parent is None,
            experiment.group != group,
            # Another architecture than the other workers': two would compile the same at once.
            busy[experiment.group] if experiment.group != group else 0,
            order[experiment.key],
        )

    return min(ready, key=rank)


def hopeless(experiments: Sequence[Experiment], states: Mapping[str, str]) -> list[Experiment]:
    """What can never be run, because what it starts from failed."""
    found: list[Experiment] = []
    lost = {key for key, state in states.items() if state == "failed"}
    for experiment in experiments:  # each stands after its parent
        if experiment.parent is not None and experiment.parent.key in lost:
            lost.add(experiment.key)
            found.append(experiment)
    return found
