"""Trials in a database that many workers share: Optuna's storage as a queue with leases.

A trial waits, is taken, and is done or has failed; its state changes in one transaction, so that
of two workers only one takes it. Who takes a trial holds it by a lease (multibranch.study.leases).
One that is not renewed any more is ended by whoever notices: the old trial is set to failed, which
only one can do, and a new one waits for the same experiment; its training goes on from its
checkpoint.
"""

import fcntl
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from multibranch.errors import UserError, needed
from multibranch.study.experiment import Experiment
from multibranch.study.leases import FINISHED, LEASE, Leases
from multibranch.study.patience import make_patient, reason


def default_url(output: Path) -> str:
    return f"sqlite:///{output / 'study.db'}"


def without_password(url: str) -> str:
    """A URL as it may be shown and written down; PGPASSWORD or ~/.pgpass has the rest."""
    url = re.sub(r"(://[^:/@]*):.*@", r"\1@", url)
    return re.sub(r"([?&])password=[^&]*&?", r"\1", url).rstrip("?&")


def open_storage(
    url: str, *, patience: float = 0.0, tell: Callable[[str], None] = lambda line: None
) -> Any:
    """Optuna's storage at a URL; tables are made where there are none yet.

    patience: for how many seconds a server is tried again that is away later, as `tell` is told.
    """
    optuna = needed("optuna", install="optuna", purpose="A study's storage")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of what is tried again
    shown = without_password(url)
    # What follows the first @ would be taken for the server, and shown as such.
    if _file(url) is None and re.search(r"://[^@]*@[^/?]*@", url):
        raise UserError(f"--storage {shown}: write %40 for an @ in the user or the password")
    # postgresql://… would ask for psycopg2; the driver that comes with us is psycopg 3.
    for name in ("postgresql://", "postgres://"):
        if url.startswith(name):
            url = "postgresql+psycopg://" + url[len(name) :]
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("postgresql+psycopg://"):
        # A database without an encoding would give bytes for text.
        arguments["connect_args"] = {"client_encoding": "utf8"}
    place = _file(url)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
    if url.startswith("sqlite:///"):
        arguments = {"connect_args": {"timeout": 120}}
    for last in (False, False, False, True):
        try:
            storage = optuna.storages.RDBStorage(url, engine_kwargs=arguments)
        except Exception as error:
            # Two workers that start at once both make the tables; the second need only try again.
            if last:
                what = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(f"--storage {shown} cannot be opened: {what}") from None
            time.sleep(0.5)
        else:
            if not url.startswith("sqlite"):
                make_patient(storage, patience, tell)
            return storage
    raise AssertionError


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Inside, that a storage takes or gives nothing any more is a UserError: a full disk, say, a
    file that was removed, or a server that is started again."""
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # whose packages may be missing
        if not kinds & {"StorageInternalError", "SQLAlchemyError"}:
            raise
        raise UserError(
            f"--storage {without_password(url)} failed: {reason(error)}; what trials have saved is "
            "kept: with that put right, the same command goes on"
        ) from None


def is_there(url: str) -> bool:
    """Whether a storage can hold something: a file that is missing does not, and stays missing."""
    place = _file(url)
    return place is None or place.is_file()


def _file(url: str) -> Path | None:
    """The file of a SQLite storage; None for one in memory, or of a database's server."""
    name = url.removeprefix("sqlite:///")
    return None if name == url or name in ("", ":memory:") else Path(name)


class Queue:
    """The trials of one study in a storage.

    Args:
        storage: what `open_storage` gives.
        name: the study's name there.
        experiments: what is to be run, each after its parent.
        fingerprints: of these experiments, by key. What was run or waits with another one, of a
            study file that was edited since, say, stands for none of them.
        lease: seconds after which a worker that gives no sign counts as gone.
    """

    def __init__(
        self,
        storage: Any,
        name: str,
        experiments: Sequence[Experiment],
        *,
        fingerprints: Mapping[str, str] | None = None,
        lease: float = LEASE,
    ) -> None:
        import optuna

        self.optuna = optuna
        self.state = optuna.trial.TrialState
        self.storage = storage
        self.experiments = list(experiments)
        self.fingerprints = fingerprints or {}
        self.leases = Leases(storage, seconds=lease)
        self.study_id = self._study(name)

    def _study(self, name: str) -> int:
        try:
            return self.storage.create_new_study(
                [self.optuna.study.StudyDirection.MAXIMIZE], study_name=name
            )
        except self.optuna.exceptions.DuplicatedStudyError:
            return self.storage.get_study_id_from_name(name)

    # -- Looking ----------------------------------------------------------------------------

    def trials(self) -> dict[str, Any]:
        """The trial that stands for each experiment, by key.

        Two workers that start at once may both add a trial; the one with the lower number stands.
        One that failed without a reason of its own lost its worker, and stands for nothing. Of
        trials with several fingerprints, where none is asked for, the one done last stands.
        """
        found: dict[str, Any] = {}
        forgotten = self.storage.get_study_user_attrs(self.study_id).get("forgotten", [])
        for trial in self.storage.get_all_trials(self.study_id, deepcopy=False):
            key = trial.user_attrs.get("key")
            lost = trial.state == self.state.FAIL and "error" not in trial.user_attrs
            if key is None or lost or trial.number in forgotten or not self._is_wanted(trial):
                continue
            standing = found.setdefault(key, trial)
            done = trial.state == self.state.COMPLETE
            if done and _fingerprint(trial) != _fingerprint(standing):
                found[key] = trial
        return found

    def _is_wanted(self, trial: Any) -> bool:
        """Whether a trial is of the experiment that its key names, as that is now."""
        wanted, has = self.fingerprints.get(trial.user_attrs.get("key")), _fingerprint(trial)
        return wanted is None or has is None or wanted == has

    def states(self) -> dict[str, str]:
        """waiting, running, done or failed, by key.

        Who gives an experiment back strikes its trial out and adds another: in between it waits.
        """
        names = {
            self.state.WAITING: "waiting",
            self.state.RUNNING: "running",
            self.state.COMPLETE: "done",
            self.state.FAIL: "failed",
            self.state.PRUNED: "done",
        }
        found = {key: names[trial.state] for key, trial in self.trials().items()}
        return {experiment.key: "waiting" for experiment in self.experiments} | found

    def records(self) -> dict[str, dict[str, Any]]:
        """The records of everything that is done, by key."""
        return {
            key: json.loads(trial.user_attrs["record"])
            for key, trial in self.trials().items()
            if trial.state == self.state.COMPLETE and "record" in trial.user_attrs
        }

    def errors(self) -> dict[str, str]:
        """Why experiments failed, by key."""
        return {key: trial.user_attrs["error"] for key, trial in self._failed().items()}

    def _failed(self) -> dict[str, Any]:
        """The trials that failed, of what is to be run; where nothing is, of the whole study."""
        keys = {experiment.key for experiment in self.experiments}
        return {
            key: trial
            for key, trial in self.trials().items()
            if trial.state == self.state.FAIL and (key in keys or not keys)
        }

    # -- Adding and taking ------------------------------------------------------------------

    def fill(self) -> None:
        """Have a trial for every experiment, and one only."""
        there = self.trials()
        for experiment in self.experiments:
            if experiment.key not in there:
                self._add(experiment.key, experiment.group)
        there = self.trials()
        waiting = (self.state.WAITING,)
        for trial in self.storage.get_all_trials(self.study_id, deepcopy=False, states=waiting):
            standing = there.get(trial.user_attrs.get("key")) if self._is_wanted(trial) else None
            if standing is not None and standing.number < trial.number:
                self.leases.end(trial._trial_id)

    def _add(self, key: str, group: str, state: Any = None, **attributes: Any) -> int:
        state = self.state.WAITING if state is None else state
        value = attributes.pop("value", None)
        if key in self.fingerprints:
            attributes.setdefault("fingerprint", self.fingerprints[key])
        trial = self.optuna.trial.create_trial(
            state=state, value=value, user_attrs={"key": key, "group": group, **attributes}
        )
        return int(self.storage.create_new_trial(self.study_id, template_trial=trial))

    def take(self, experiment: Experiment) -> int | None:
        """Take the waiting trial of an experiment; None when somebody else was faster."""
        trial = self.trials().get(experiment.key)
        if trial is None or trial.state != self.state.WAITING:
            return None
        try:
            with self._alone():
                taken = self.storage.set_trial_state_values(trial._trial_id, self.state.RUNNING)
        except FINISHED:
            return None
        if not taken:
            return None
        self.leases.renew(trial._trial_id)
        return int(trial._trial_id)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Where the database does not lock what it reads in order to change it, as SQLite does not:
        one at a time, by a lock on a file beside it."""
        place = self.storage.engine.url.database
        if self.storage.engine.dialect.name != "sqlite" or place in (None, "", ":memory:"):
            yield
            return
        with Path(f"{place}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def take_back(self) -> list[str]:
        """End the leases of workers that are gone; the keys of what waits again.

        What is not to be run here is left to those who run it.
        """
        freed, there = [], self.trials()
        for experiment in self.experiments:
            trial = there.get(experiment.key)
            if trial is None or trial.state != self.state.RUNNING:
                continue
            if not self.leases.is_gone(trial) or not self.leases.end(trial._trial_id):
                continue  # at work, or it ended after all, or another worker ended its lease
            self._add(experiment.key, experiment.group, retry_of=trial.number)
            freed.append(experiment.key)
        return freed

    # -- Ending -----------------------------------------------------------------------------

    def done(self, trial_id: int, record: dict[str, Any]) -> bool:
        """Store what came of a trial; False when the lease had been ended."""
        try:
            self.storage.set_trial_user_attr(trial_id, "record", json.dumps(record))
            return bool(
                self.storage.set_trial_state_values(trial_id, self.state.COMPLETE, [_value(record)])
            )
        except FINISHED:
            return False

    def failed(self, trial_id: int, error: str) -> None:
        """The experiment itself failed, and would again."""
        with suppress(FINISHED):
            self.storage.set_trial_user_attr(trial_id, "error", error)
            self.leases.end(trial_id)

    def give_back(self, experiment: Experiment, trial_id: int) -> None:
        """Stop before the end: the experiment waits again."""
        if self.leases.end(trial_id):
            self._add(experiment.key, experiment.group)

    def forget_failures(self) -> int:
        """Let what failed wait again; how many that are."""
        failed = list(self._failed().values())
        self._forget(failed)
        return len(failed)

    def _forget(self, failed: Sequence[Any]) -> None:
        """A finished trial cannot be changed, so the study remembers what counts no more."""
        forgotten = self.storage.get_study_user_attrs(self.study_id).get("forgotten", [])
        self.storage.set_study_user_attr(
            self.study_id, "forgotten", [*forgotten, *(trial.number for trial in failed)]
        )

    def add_done(self, record: dict[str, Any], group: str) -> bool:
        """Store a record that was made elsewhere; False when it is there already.

        It takes the place of one that was made with other settings, of a failure, and of a trial
        that waits or runs.
        """
        there = self.trials().get(record["key"])
        if there is not None and there.state == self.state.COMPLETE:
            if _fingerprint(there) == record.get("fingerprint"):
                return False
        elif there is not None and there.state == self.state.FAIL:
            self._forget([there])
        elif there is not None:
            self.leases.end(there._trial_id)
        content = {"record": json.dumps(record), "fingerprint": record.get("fingerprint")}
        self._add(record["key"], group, self.state.COMPLETE, value=_value(record), **content)
        return True


def _fingerprint(trial: Any) -> str | None:
    """What tells a trial from one of the same key with other settings or data."""
    if "fingerprint" in trial.user_attrs:
        return trial.user_attrs["fingerprint"]
    record = trial.user_attrs.get("record")
    return None if record is None else json.loads(record).get("fingerprint")


def _value(record: dict[str, Any]) -> float:
    """A trial's value: the score on the validation set, by which models may be chosen."""
    valid = record.get("valid_bleu") or {}
    return float(max(valid.values(), default=record.get("valid_score", 0.0)))
