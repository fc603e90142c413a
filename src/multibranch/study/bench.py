"""Where the experiments of a study are run: the data, the folders, and each one's configuration."""

import copy
import dataclasses
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multibranch import configuration
from multibranch.data import PreparedData
from multibranch.disk import sha256
from multibranch.errors import UserError
from multibranch.study.experiment import Experiment
from multibranch.study.plan import PLACES, Corpus, Study
from multibranch.tasks.translation import open_data
from multibranch.tasks.understanding_config import UnderstandingConfig
from multibranch.training import Config
from multibranch.training.config import RANGES
from multibranch.training.run_folder import FREE_KEYS

# What does not make a trained model another one, so that studies can share it. What ends training
# may change from one start of a run to the next, but does make another model.
_LIMITS = {"train.max_updates", "train.max_epochs", "train.max_minutes"}
_ENDS = {*_LIMITS, "train.patience", "train.judge_from"}
NOT_PART = {*FREE_KEYS, "train.output", "train.init_from"} - _ENDS

# The scores that a study's tables can have, by its task.
SCORES = {
    "translation": ("bleu", "multi_bleu", "chrf"),
    "code": ("sentence_bleu", "bleu", "exact_match", "pov"),
    "understanding": ("accuracy", "f1", "matthews"),
}

# What every experiment decides itself, so that a study's settings cannot.
_DECIDED = {"model.branches", "model.drop_branch", "train.seed", "train.output"}
_DECIDED_TOO = {  # where models are trained from their first weights on
    *(f"model.{name}" for name in Experiment(corpus="", seed=1).model()),
    "train.r_drop",
    "train.init_from",
}


@dataclass
class Bench:
    """A study with its data, at work in a folder.

    Args:
        study: what to run.
        output: where trials go: output/trials/KEY-FINGERPRINT. Studies that share an output folder
            share the models that they have in common.
        data: prepared folders by the name of the corpus, where they are not the study file's.
        device: auto, cpu or cuda.
        words: what the command that repeats a trial needs besides the name and the key: data,
            output, storage and device, as they were given.
    """

    study: Study
    output: Path
    data: dict[str, str] = field(default_factory=dict)
    device: str = "auto"
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A run remembers what it started from; however the folder is named, that is one path.
        self.output = self.output.absolute()
        self._opened: dict[str, PreparedData] = {}
        self._bases: dict[tuple[str, str], Any] = {}
        self._fingerprints: dict[str, str] = {}
        known = [corpus.name for corpus in self.study.corpora]
        for name in self.data:
            if name not in known:
                raise UserError(f"--data {name}=…: the study's corpora are {', '.join(known)}")

    # -- Configurations ---------------------------------------------------------------------

    def _base(self, corpus: Corpus, experiment: Experiment | None = None) -> Any:
        """The configuration of a corpus, as an experiment's stage changes it."""
        own = {} if experiment is None else self.study.stage_settings(experiment)
        known = corpus.name, json.dumps(own)
        if known not in self._bases:
            path = find_config(corpus.config or self.study.config)
            understanding = configuration.peek(path, "task") == "understanding"
            decided = _DECIDED if understanding else _DECIDED | _DECIDED_TOO
            stage = "second" if experiment is not None and experiment.second_stage else "scratch"
            base = configuration.load(UnderstandingConfig if understanding else Config, path)
            for where, asked in (
                ("settings", self.study.settings),
                (f"corpora: {corpus.name}: settings", corpus.settings),
                (f"{stage}_settings", own),
            ):
                base = self._change(base, asked, decided, f"{self.study.path}: {where}")
            self._bases[known] = base
        return self._bases[known]

    @staticmethod
    def _change(base: Any, asked: dict[str, Any], decided: set[str], where: str) -> Any:
        """A configuration with the keys of the study's file that stand at `where`."""
        wrong = asked.keys() & decided
        if wrong:
            raise UserError(
                f"{where}: {min(wrong)} is decided by each experiment, from the grids and seeds: "
                "remove it"
            )
        words = [
            f"--{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"
            for key, value in asked.items()
        ]
        try:
            return configuration.override(base, words)
        except UserError as error:
            raise UserError(f"{where}: {str(error).removeprefix('the command line: ')}") from None

    def _check_ends(self, corpus: Corpus, experiment: Experiment) -> None:
        """Refuse a setting that would end training where the study's own keys do."""
        own = self.study.stage_settings(experiment)
        for key in sorted(_LIMITS):
            if key in {**self.study.settings, **corpus.settings, **own}:
                raise UserError(
                    f"{self.study.path}: {key} is among the settings, but how long a model trains "
                    "is said by the study's own keys, such as updates: remove one of them"
                )

    def config(self, experiment: Experiment) -> Config:
        """The whole configuration of an experiment's training."""
        corpus = self.study.corpus(experiment.corpus)
        config: Config = self._base(corpus, experiment)
        limits = self.study.limits(experiment)
        if limits:  # the base's own limits make way for the study's
            self._check_ends(corpus, experiment)
            limits = {"max_epochs": None, "max_updates": None, "max_minutes": None, **limits}
        parent = experiment.parent
        return dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, folder=self.data.get(corpus.name, corpus.folder)),
            model=dataclasses.replace(config.model, **experiment.model()),
            train=dataclasses.replace(
                config.train,
                **limits,
                seed=experiment.seed,
                r_drop=experiment.r_drop,
                device=self.device,
                output=str(self.folder(experiment)),
                init_from=None if parent is None else str(self.folder(parent)),
                tensorboard=False,
                checkpoint_minutes=min(config.train.checkpoint_minutes, 1.0),
                keep_checkpoints=1,
            ),
        )

    def classifier(self, experiment: Experiment) -> UnderstandingConfig:
        """The same for an experiment on a pretrained encoder."""
        corpus = self.study.corpus(experiment.corpus)
        config: UnderstandingConfig = copy.deepcopy(self._base(corpus))
        config.data.folder = self.data.get(corpus.name, corpus.folder) or config.data.folder
        config.model.branches = experiment.branches
        config.model.drop_branch = experiment.drop_branch
        config.train.seed = experiment.seed
        config.train.device = self.device
        config.train.max_updates = self.study.updates or config.train.max_updates
        config.train.output = str(self.folder(experiment) / "model")
        return config

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse, before anything is trained, what could not be: one bad value in a grid is enough.

        Otherwise it would be met when its turn comes, after hours of other trials.
        """
        where, penalties = f"{self.study.path}: length_penalties", self.study.length_penalties
        configuration.check_range(where, penalties, RANGES["decode.length_penalty"])
        for task in sorted({self.task(one) for one in experiments}):
            if self.study.metric not in SCORES[task]:
                raise UserError(
                    f"{self.study.path}: metric: {task} has no score {self.study.metric!r}; those "
                    f"there are: {', '.join(SCORES[task])}"
                )
        self._check_stages(experiments)
        for one in experiments:
            encoder = self.task(one) == "understanding"
            config = self.classifier(one) if encoder else self.config(one)
            try:
                if encoder != (one.start == "pretrained"):
                    raise UserError("the start pretrained, and no other, is for an encoder's tasks")
                config.check()
                if not encoder and one.width % one.heads:
                    raise UserError(f"{one.heads} heads do not divide a width of {one.width}")
            except UserError as error:
                raise UserError(f"{self.study.path}: {one.key}: {error}") from None

    def _check_stages(self, experiments: Sequence[Experiment]) -> None:
        """Refuse a mistake in the settings of a stage that none of the experiments has, too."""
        for corpus in sorted({one.corpus for one in experiments}):
            base = self._base(self.study.corpus(corpus))
            encoder = isinstance(base, UnderstandingConfig)
            decided = _DECIDED if encoder else _DECIDED | _DECIDED_TOO
            for name in ("second_settings", "scratch_settings"):
                where = f"{self.study.path}: {name}"
                self._change(base, getattr(self.study, name), decided, where)

    def task(self, experiment: Experiment) -> str:
        """translation, code or understanding."""
        base = self._base(self.study.corpus(experiment.corpus))
        return "understanding" if isinstance(base, UnderstandingConfig) else str(base.task)

    def fingerprint(self, experiment: Experiment) -> str:
        """Six digits that differ where anything that the result depends on does."""
        if experiment.key not in self._fingerprints:
            corpus = self.study.corpus(experiment.corpus)
            base = self._base(corpus, experiment)
            kept = {
                key: value
                for key, value, _ in configuration.differences(base, _NOTHING)
                if key not in NOT_PART
            }
            parent = experiment.parent
            parts: list[Any] = [
                experiment.key,
                kept,
                self.study.limits(experiment),
                None if parent is None else self.fingerprint(parent),
                self._manifest(corpus),
            ]
            if self.study.length_penalties:
                parts.append(self.study.length_penalties)
            if self.study.same_length_penalty:
                parts.append("one length penalty")
            text = json.dumps(parts, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()
            self._fingerprints[experiment.key] = digest[:6]
        return self._fingerprints[experiment.key]

    def is_outdated(self, record: dict[str, Any]) -> bool:
        """Whether a trial ran with other settings, or other data where that is at hand.

        One of a corpus that the study has no more is not: it cannot be run again.
        """
        experiment = Experiment(**record["experiment"])
        if experiment.corpus not in (corpus.name for corpus in self.study.corpora):
            return False
        corpus = self.study.corpus(experiment.corpus)
        folder = self.data.get(corpus.name, corpus.folder)
        if folder is not None and self._manifest(corpus) is None:
            return False
        return bool(self.fingerprint(experiment) != record["fingerprint"])

    def _manifest(self, corpus: Corpus) -> str | None:
        """What tells the data from other data of the same name."""
        folder = self.data.get(corpus.name, corpus.folder)
        path = Path(folder or "") / "manifest.json"
        if folder is None or not path.is_file():
            return None
        return sha256(path)

    def folder(self, experiment: Experiment) -> Path:
        """Where a trial is run; its model directory, once it is done."""
        return self.output / "trials" / f"{experiment.key}-{self.fingerprint(experiment)}"

    # -- Data -------------------------------------------------------------------------------

    def open(self, experiment: Experiment) -> PreparedData:
        """The prepared data of an experiment."""
        name = experiment.corpus
        if name not in self._opened:
            config = self.config(experiment)
            if config.data.folder is not None and not Path(config.data.folder).is_dir():
                raise UserError(
                    f"{config.data.folder} is not there: prepare the corpus {name} "
                    f"(`multibranch prepare`), or say where it is: --data {name}=FOLDER"
                )
            # The built-in corpus lies beside the trials, made once for all of them.
            place = dataclasses.replace(config.train, output=str(self.output / "model"))
            self._opened[name] = open_data(dataclasses.replace(config, train=place))
        return self._opened[name]

    def command(self, experiment: Experiment | None = None) -> str:
        """The command that runs the study here, or repeats one trial with what it starts from."""
        words: list[str] = []
        if experiment is not None:
            words = ["--only", experiment.key]
            known = "--seeds" in self.words or experiment in self.study.experiments()
            words += [] if known else ["--seeds", str(experiment.seed)]  # else there is no such key
        return shlex.join(["multibranch", "study", "run", self.study.said, *words, *self.words])


def parse_data(said: list[str], study: Study) -> dict[str, str]:
    """`--data` as given: NAME=FOLDER, or one folder, or the folder that holds them all."""
    found: dict[str, str] = {}
    for word in said:
        name, equals, folder = word.partition("=")
        if equals:
            found[name] = folder
            continue
        place = Path(word)
        if len(study.corpora) == 1:
            corpus = study.corpora[0]
            inner = place / Path(corpus.folder or corpus.name).name
            prepared = (place / "manifest.json").is_file() or not inner.is_dir()
            found[corpus.name] = str(place if prepared else inner)
            continue
        inside: dict[str, str] = {}
        for corpus in study.corpora:
            name = Path(corpus.folder or corpus.name).name
            if place.name == name and (place / "manifest.json").is_file():
                inside[corpus.name] = str(place)
            elif (place / name).is_dir():
                inside[corpus.name] = str(place / name)
        if not inside:
            names = ", ".join(Path(c.folder or c.name).name for c in study.corpora)
            raise UserError(
                f"--data {word}: the study has several corpora, and none of the folders {names} is "
                "there; or give each: --data NAME=FOLDER"
            )
        found |= inside
    return found


def find_config(name: str) -> Path:
    """A configuration file: as the path says, or beside the study files."""
    for place in (Path(name), *(folder.parent / Path(name).name for folder in PLACES)):
        if place.is_file():
            return place
    raise UserError(f"there is no configuration file {name}")


@dataclass
class _Nothing:
    """No configuration at all: what differs from it is everything."""


_NOTHING = _Nothing()
