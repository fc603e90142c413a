"""A study file: which experiments, on which data, beside which tables of the paper.

The files lie in configs/studies. A grid either is a table of the paper, each of whose cells becomes
an experiment (at the paper's size, or made smaller by factors), or lists values whose every
combination is one.
"""

import itertools
import math
import re
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from multibranch import configuration
from multibranch.errors import UserError, nearest
from multibranch.study.experiment import Experiment, normalised
from multibranch.study.paper import Cell, Table, tables
from multibranch.study.space import Search

# Where study files are looked for: here, and in the clone that the package was installed from.
PLACES = (Path("configs/studies"), Path(__file__).resolve().parents[3] / "configs" / "studies")
SEEDS = 1000  # that a cell may have, from 1 on
_STARTS = ("scratch", "continued", "proximal", "pretrained")


@dataclass
class Corpus:
    """Data that a study's experiments are run on.

    name: how keys, --only and --data call it.
    folder: the prepared folder; null is the built-in corpus.
    stands_for: tasks of the paper whose cells are run on it; where not given, the one of its name.
    test: which of the paper's test sets is its own, where a table has several.
    config: the configuration that experiments on it start from, where it is not the study's.
    settings: further keys, as section.key.
    """

    name: str
    folder: str | None = None
    stands_for: list[str] | None = None
    test: str | None = None
    config: str | None = None
    settings: dict = field(default_factory=dict)


@dataclass
class Grid:
    """Experiments: those of a table of the paper, or all combinations of the values listed.

    paper: the number of a table.
    width_factor, hidden_factor: make the table's models smaller.
    encoder_layers, decoder_layers: blocks; of a paper's table, in place of its own.
    """

    paper: int | None = None
    width_factor: float = 1.0
    hidden_factor: float = 1.0
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    starts: list[str] = field(default_factory=lambda: ["scratch"])
    branches: list[int] = field(default_factory=lambda: [1])
    shapes: list[str] = field(default_factory=list)
    ffn_branches: list[int] = field(default_factory=lambda: [1])
    heads: list[int] = field(default_factory=list)
    drop_branch: list[float] = field(default_factory=lambda: [0.0])
    drop_kind: list[str] = field(default_factory=lambda: ["branch"])
    r_drop: list[float] = field(default_factory=lambda: [0.0])
    keep: list[int] = field(default_factory=list)
    seeds: int | None = None


@dataclass
class Study:
    """A study file."""

    title: str
    config: str
    corpora: list[Corpus]
    grids: list[Grid]
    about: str = ""
    claims: str = ""
    seeds: int = 3
    updates: int | None = None
    second_updates: int | None = None
    scratch_updates: int | None = None
    minutes: float | None = None
    second_minutes: float | None = None
    continued: bool = True
    unsaid: Literal["scratch", "proximal"] = "proximal"
    length_penalties: list[float] = field(default_factory=list)
    same_length_penalty: bool = False
    metric: str = "multi_bleu"
    settings: dict = field(default_factory=dict)
    second_settings: dict = field(default_factory=dict)
    scratch_settings: dict = field(default_factory=dict)
    search: Search | None = None
    name: str = ""
    path: str = ""
    said: str = ""  # how the reader named it, for commands that repeat something

    @property
    def papers(self) -> list[int]:
        """The tables of the paper that this study mirrors."""
        return [grid.paper for grid in self.grids if grid.paper is not None]

    def corpus(self, name: str) -> Corpus:
        return next(corpus for corpus in self.corpora if corpus.name == name)

    def stage_settings(self, experiment: Experiment) -> dict[str, Any]:
        """The keys of the configuration that this experiment's stage alone changes."""
        if experiment.second_stage:
            return self.second_settings
        return self.scratch_settings if experiment.branched_from_scratch else {}

    def limits(self, experiment: Experiment) -> dict[str, Any]:
        """The keys of `train:` that end this experiment's training."""
        found = {"max_updates": self.updates, "max_minutes": self.minutes}
        if experiment.second_stage and self.second_updates is not None:
            found["max_updates"] = self.second_updates
        if experiment.branched_from_scratch and self.scratch_updates is not None:
            found["max_updates"] = self.scratch_updates
        if experiment.second_stage and self.second_minutes is not None:
            found["max_minutes"] = self.second_minutes
        return {name: value for name, value in found.items() if value is not None}

    def own(self, seed: int = 1) -> Experiment:
        """The study's own model, which a search is to beat: the first that its first grid lists."""
        listed = (self._of_grid(self.grids[0], corpus, seed) for corpus in self.corpora)
        return next(filter(None, listed))[0]

    def experiments(self, seeds: int | None = None) -> list[Experiment]:
        """Every experiment once, each after the one it starts from, controls included."""
        found: dict[str, Experiment] = {}

        def add(experiment: Experiment) -> None:
            if experiment.parent is not None:
                add(experiment.parent)
            found.setdefault(experiment.key, experiment)

        for grid in self.grids:
            for seed in range(1, (seeds or grid.seeds or self.seeds) + 1):
                for corpus in self.corpora:
                    for experiment in self._of_grid(grid, corpus, seed):
                        add(experiment)
                        if self.continued and experiment.start == "proximal":
                            add(experiment.continued)
        return list(found.values())

    def title_of(self, experiment: Experiment) -> str:
        """An experiment's line for people, with M where models of its shape differ in that."""
        return experiment.title(heads=len(self._heads.get(experiment.shape, ())) > 1)

    @cached_property
    def _heads(self) -> dict[str, set[int]]:
        """The numbers of heads of the study's models, by their shape."""
        found: dict[str, set[int]] = {}
        for one in self.experiments(seeds=1):
            found.setdefault(one.shape, set()).add(one.heads)
        return found

    def _of_grid(self, grid: Grid, corpus: Corpus, seed: int) -> list[Experiment]:
        if grid.paper is not None:
            cells = [cell for cell in table(grid.paper).cells if not cell.cited]
            made = [self.experiment_of(cell, grid, corpus, seed) for cell in cells]
            return list(dict.fromkeys(one for one in made if one is not None))
        return self._product(grid, corpus, seed)

    def experiment_of(self, cell: Cell, grid: Grid, corpus: Corpus, seed: int) -> Experiment | None:
        """What gives this cell of the paper's its number here; None on another corpus."""
        if cell.task not in (corpus.stands_for or [corpus.name]) or cell.cited:
            return None
        assert cell.branches and cell.width and cell.hidden and cell.heads
        encoder, decoder = cell.encoder_layers or 0, cell.decoder_layers or 0
        start = self._start(cell)
        return normalised(
            Experiment(
                corpus=corpus.name,
                seed=seed,
                start=start,
                branches=cell.branches,
                width=round(cell.width * grid.width_factor),
                hidden=round(cell.hidden * grid.hidden_factor),
                ffn_branches=cell.ffn_branches,
                heads=cell.heads,
                encoder_layers=encoder if grid.encoder_layers is None else grid.encoder_layers,
                decoder_layers=decoder if grid.decoder_layers is None else grid.decoder_layers,
                drop_branch=0.3 if cell.drop_branch is None else cell.drop_branch,
                drop_kind="head" if cell.drop_kind == "head" else "branch",
            )
        )

    def _start(self, cell: Cell) -> Any:
        if not cell.decoder_layers:
            return "pretrained"
        if cell.branches == 1:
            return "scratch"
        if cell.proximal is None:
            return self.unsaid
        return "proximal" if cell.proximal else "scratch"

    def _product(self, grid: Grid, corpus: Corpus, seed: int) -> list[Experiment]:
        made = []
        for start, branches, shape, ffn, heads, rate, kind, r_drop in itertools.product(
            grid.starts,
            grid.branches,
            grid.shapes or ["256/1024"],
            grid.ffn_branches,
            grid.heads or [4],
            grid.drop_branch,
            grid.drop_kind,
            grid.r_drop,
        ):
            width, _, hidden = shape.partition("/")
            one = Experiment(
                corpus=corpus.name,
                seed=seed,
                start=start,  # type: ignore[arg-type]
                branches=1 if start == "continued" else branches,
                width=int(width),
                hidden=int(hidden),
                ffn_branches=ffn,
                heads=heads,
                encoder_layers=6 if grid.encoder_layers is None else grid.encoder_layers,
                decoder_layers=6 if grid.decoder_layers is None else grid.decoder_layers,
                drop_branch=0.0 if start == "continued" else rate,
                drop_kind=kind,  # type: ignore[arg-type]
                r_drop=r_drop,
            )
            made.append(normalised(one))
            if branches > 1 and start in ("scratch", "proximal"):
                made += [
                    replace(made[-1], start="pruned", keep=keep, before=start)  # type: ignore[arg-type]
                    for keep in grid.keep
                    if keep < branches
                ]
        return made

    def check(self) -> "Study":
        """Refuse what cannot be run, with the key to change; give back the study."""
        names = [corpus.name for corpus in self.corpora]
        if not names or not self.grids:
            raise UserError(f"{self.path}: a study needs at least one corpus and one grid")
        for name in names:
            if names.count(name) > 1 or not re.fullmatch(r"[\w+-]+", name):
                raise UserError(
                    f"{self.path}: {name!r} must name one corpus, in letters and digits"
                )
        _check_seeds(f"{self.path}: seeds", self.seeds)
        for number, grid in enumerate(self.grids, 1):
            _check_grid(f"{self.path}: grids[{number}]", grid)
        if self.search is not None:
            self.search.check(f"{self.path}: search")
        if not self.experiments(seeds=1):
            raise UserError(f"{self.path}: no cell of its tables is for one of its corpora")
        for number, grid in enumerate(self.grids, 1):
            if not any(self._of_grid(grid, corpus, 1) for corpus in self.corpora):
                raise UserError(
                    f"{self.path}: grids[{number}].paper: no cell of table {grid.paper} is for one "
                    "of the corpora: see their stands_for"
                )
        return self


def _check_grid(where: str, grid: Grid) -> None:
    if grid.seeds is not None:
        _check_seeds(f"{where}.seeds", grid.seeds)
    for keep in grid.keep:
        if keep < 1:
            raise UserError(f"{where}.keep must be at least 1, not {keep}")
    if grid.paper is not None and grid.paper not in range(1, len(tables()) + 1):
        raise UserError(f"{where}.paper: the paper has tables 1 to {len(tables())}")
    for name in ("width_factor", "hidden_factor"):
        configuration.check_range(
            f"{where}.{name}", getattr(grid, name), (configuration.ABOVE_0, math.inf)
        )
    _check_kind(where, grid)
    wrong = [start for start in grid.starts if start not in _STARTS]
    if wrong:
        raise UserError(f"{where}.starts: {wrong[0]!r} is none of {', '.join(_STARTS)}")
    for shape in grid.shapes:
        if not re.fullmatch(r"\d+/\d+", shape):
            raise UserError(f"{where}.shapes: write d/d_h, as in 256/1024, not {shape!r}")
    kinds = [kind for kind in grid.drop_kind if kind not in ("branch", "head")]
    if kinds:
        raise UserError(f"{where}.drop_kind: {kinds[0]!r} is neither branch nor head")
    lists = ("starts", "branches", "ffn_branches", "drop_branch", "drop_kind", "r_drop")
    for name in lists:
        if not getattr(grid, name):
            raise UserError(f"{where}.{name} is empty: give at least one value")


def _check_kind(where: str, grid: Grid) -> None:
    """Refuse a key of the other kind of grid, which would count for nothing."""
    of_tables, of_both = {"width_factor", "hidden_factor"}, {"seeds", "paper"}
    of_both |= {"encoder_layers", "decoder_layers"}
    usual = Grid()
    for one in fields(Grid):
        here = grid.paper is None if one.name in of_tables else grid.paper is not None
        if here and one.name not in of_both and getattr(grid, one.name) != getattr(usual, one.name):
            what = "makes a table of the paper smaller, and this grid lists its own values"
            if grid.paper is not None:
                what = f"is for a grid that lists values, and this one is table {grid.paper}"
            raise UserError(f"{where}.{one.name} {what}: remove it, or give it a grid of its own")


def _check_seeds(where: str, seeds: int) -> None:
    if not 1 <= seeds <= SEEDS:
        raise UserError(f"{where} must be 1 to {SEEDS:,}, not {seeds}")


def table(number: int) -> Table:
    """A table of the paper."""
    return tables()[number - 1]


def study_files() -> dict[str, Path]:
    """Every study file that there is, by name."""
    found: dict[str, Path] = {}
    for place in PLACES:
        for path in sorted(place.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_study(name: str) -> Study:
    """The study of this name or path; `table-2` is the paper's Table 2, at the paper's size."""
    if re.fullmatch(r"table-\d+", name):
        return _one_table(int(name.partition("-")[2]))
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        files = study_files()
        if name not in files:
            known = [*files, *(f"table-{table.number}" for table in tables())]
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else "`multibranch study list` names all"
            if path.is_file():
                hint = "a study's file ends in .yaml"
            raise UserError(f"there is no study {name}; {hint}")
        path = files[name]
    elif not path.exists():
        raise UserError(
            f"there is no study file {path}; `multibranch study list` names what is here"
        )
    study = configuration.load(Study, path)
    study.name, study.path, study.said = path.stem, str(path), name
    return study.check()


def _one_table(number: int) -> Study:
    """The study that runs one table at the paper's size, cut down to that table."""
    for file in study_files():
        study = load_study(file)
        full = [g for g in study.grids if g.paper == number and g.width_factor == 1]
        full = [g for g in full if g.encoder_layers is None]
        if full:
            study.grids, study.name = full, f"table-{number}"
            study.said = study.name
            return study.check()
    raise UserError(f"no study runs table {number} of the paper; see `multibranch study list`")


def choose(experiments: list[Experiment], only: list[str]) -> list[Experiment]:
    """The experiments that the patterns name, with those that they start from.

    A pattern is a key or a part of one, with or without the seed; * and ? stand for anything. A
    whole key names its own experiment alone, though another's may begin with it.
    """
    if not only:
        return experiments
    chosen: dict[str, Experiment] = {}
    by_key = {experiment.key: experiment for experiment in experiments}
    for pattern in only:
        fitting = [e for e in experiments if pattern in (e.key, e.cell)]
        fitting = fitting or [e for e in experiments if _fits(e, pattern)]
        if not fitting:
            near = nearest(pattern, by_key)
            hint = f"the nearest is {near}" if near else "`multibranch study list NAME` shows all"
            raise UserError(f"--only {pattern}: no experiment of the study fits; {hint}")
        for experiment in fitting:
            line = [experiment]
            while line[-1].parent is not None:
                line.append(line[-1].parent)
            chosen |= {one.key: one for one in reversed(line)}
    return [experiment for experiment in experiments if experiment.key in chosen]


def _fits(experiment: Experiment, pattern: str) -> bool:
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(experiment.key, pattern) or fnmatchcase(experiment.cell, pattern)
    parts, wanted = _parts(experiment.key), _parts(pattern)
    return any(parts[n : n + len(wanted)] == wanted for n in range(len(parts)))


def _parts(key: str) -> list[str]:
    """A key cut at its points, of which one between two digits is a number's own."""
    return re.split(r"(?<!\d)\.|\.(?!\d)", key)
