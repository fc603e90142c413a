"""Workers that take the trials of a study from its storage, one process each."""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import Any

from multibranch.disk import takes_nothing
from multibranch.errors import Interrupted, UserError, counted
from multibranch.study.bench import Bench
from multibranch.study.company import Companies
from multibranch.study.experiment import Experiment
from multibranch.study.leases import LEASE, POLL
from multibranch.study.order import hopeless, next_experiment, takeable
from multibranch.study.scoring import scored
from multibranch.study.stopping import end_of, is_over, terminable
from multibranch.study.storage import Queue, answering, open_storage
from multibranch.study.telling import TELL_EVERY, Tell, telling
from multibranch.study.trial import Stopped, run_trials
from multibranch.study.trial_folder import Busy, is_claimed, tidy


@dataclass
class Work:
    """What a worker needs to know; it travels to other processes."""

    bench: Bench
    experiments: list[Experiment]
    url: str
    lease: float = LEASE
    threads: int | None = None
    together: int = 1  # how many are trained as one
    discard_models: bool = False  # of what no other experiment starts from
    tell_every: float = TELL_EVERY
    end: float | None = None  # when nothing is begun any more, as `end_of` gives it

    def queue(self, tell: Tell = lambda line: None) -> Queue:
        """The trials in the storage; `tell` is told where that is away."""
        return Queue(
            open_storage(self.url, patience=self.lease / 2, tell=tell),
            self.bench.study.name,
            self.experiments,
            fingerprints={each.key: self.bench.fingerprint(each) for each in self.experiments},
            lease=self.lease,
        )


def work(
    job: Work, *, tell: Tell = lambda line: None, tell_within: Tell | None = None
) -> dict[str, int]:
    """Take trials until none is left that this worker could run; how the study stands then.

    tell_within: told how a trial goes while it is run; as `tell` unless given.
    """
    queue = job.queue(tell)
    queue.fill()
    companies = Companies(job.together, lambda experiment: job.bench)
    group = ""
    busy: list[Experiment] = []  # which other processes are at, though this storage has none

    def here(experiment: Experiment) -> bool:
        return _here(job, experiment)

    while True:
        if is_over(job.end):
            raise KeyboardInterrupt
        for key in queue.take_back():
            tell(f"{key}: its worker is gone; taking it up again")
        queue.fill()
        busy = [experiment for experiment in busy if is_claimed(job.bench.folder(experiment))]
        states = queue.states() | {experiment.key: "running" for experiment in busy}
        chosen = next_experiment(job.experiments, states, group=group, here=here)
        if chosen is None:
            lost = {experiment.key for experiment in hopeless(job.experiments, states)}
            open_ones = [e for e in job.experiments if states[e.key] in ("waiting", "running")]
            if all(e.key in lost for e in open_ones):
                return count(job, states)
            if not any(states[e.key] == "running" for e in open_ones):
                tell("what is left starts from models that lie on another machine")
                return count(job, states)
            time.sleep(POLL)
            continue
        ready = takeable(job.experiments, states, here=here)
        company = companies.find(chosen, ready, job.experiments)
        taken = [(one, trial) for one in company if (trial := queue.take(one)) is not None]
        if not taken:
            continue
        group = chosen.group
        for one, _ in taken:
            tell(f"{one.key}: {job.bench.study.title_of(one)}")
        try:
            records = _run(job, queue, taken, tell_within or tell)
        except Busy as at_it:
            # Of a study with the same output folder, say, or a worker that was taken for gone.
            (one,) = (e for e, _ in taken if job.bench.folder(e).name == str(at_it))
            tell(f"{one.key}: another process is at it; waiting for that one")
            busy.append(one)
            continue
        except Apart as error:
            companies.apart |= {one.key for one, _ in taken}
            tell(f"{counted(len(taken), 'trial')} failed together ({error}): each by itself now")
            continue
        for record in records:
            tell(f"{record['key']}: {_summary(job, record)}; {_progress(job, queue.states())}")


class Apart(Exception):
    """Trials failed while they were trained together: it may have been one of them alone."""


def _here(job: Work, experiment: Experiment) -> bool:
    """Whether a shared stage's model lies where this worker can read it."""
    return (job.bench.folder(experiment) / "config.json").is_file()


def _run(
    job: Work, queue: Queue, taken: Sequence[tuple[Experiment, int]], tell: Tell
) -> list[dict[str, Any]]:
    """Run trials that were taken, as one; the records of those that are done and not too late."""
    bench, trials = job.bench, [trial for _, trial in taken]
    watches = [
        telling(one.key, tell, updates=_most_updates(job, one), every=job.tell_every)
        for one, _ in taken
    ]

    def give_back() -> None:
        for experiment, trial in taken:
            queue.give_back(experiment, trial)

    try:
        with queue.leases.renewed(*trials):
            found = run_trials([(bench, one) for one, _ in taken], watches=watches)
            records = [_scored(job, one, record) for (one, _), record in zip(taken, found)]
    except (Busy, KeyboardInterrupt):
        give_back()
        raise
    except Stopped as stopped:
        give_back()
        raise Interrupted(stopped.signal) from None
    except Exception as error:
        if takes_nothing(error):  # no trial would fare better
            give_back()
            raise
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        why = name + " ".join(str(error).split())
        if len(taken) > 1:
            give_back()
            raise Apart(why) from None
        queue.failed(trials[0], why)
        return []
    kept = [
        (experiment, record)
        for (experiment, trial), record in zip(taken, records)
        if queue.done(trial, record)
    ]
    for experiment, _ in kept:
        if job.discard_models and experiment.cell not in _started_from(job):
            tidy(bench.folder(experiment), model=True)
    return [record for _, record in kept]


def _scored(job: Work, experiment: Experiment, record: dict[str, Any]) -> dict[str, Any]:
    data = None if record.get("task") == "understanding" else job.bench.open(experiment)
    return scored(record, job.bench.folder(experiment), data)


def _most_updates(job: Work, experiment: Experiment) -> int | None:
    if job.bench.task(experiment) == "understanding":
        return None
    return job.bench.config(experiment).train.max_updates


def _started_from(job: Work) -> set[str]:
    """The cells whose models others of the study start from, be those asked for now or later."""
    every = (*job.bench.study.experiments(seeds=1), *job.experiments)
    return {experiment.parent.cell for experiment in every if experiment.parent is not None}


def count(job: Work, states: dict[str, str]) -> dict[str, int]:
    """How many experiments are in which state."""
    return dict(Counter(states.get(e.key, "waiting") for e in job.experiments))


def _progress(job: Work, states: dict[str, str]) -> str:
    return f"{count(job, states).get('done', 0)} of {len(job.experiments)} done"


def _summary(job: Work, record: dict[str, Any]) -> str:
    """What came of a trial, with the score that the study's tables have."""
    scores, metric = record.get("scores") or {}, job.bench.study.metric
    name = metric if metric in scores else next(iter(scores), None)
    score = f"{name} {scores[name]['value']:.2f}, " if name else ""
    updates = f"{counted(record['updates'], 'update')}, " if record.get("updates") else ""
    return f"{score}{updates}{record['wall_seconds']:.0f} s"


# -- Several workers of one command ---------------------------------------------------------------


def run_workers(
    job: Work, workers: int, *, tell: Tell, minutes: float | None = None
) -> dict[str, int]:
    """Run the study with so many processes; how it stands when they have ended.

    tell: travels to other processes, where there are several.
    minutes: after which what is at work is stopped and given back.
    """
    job = replace(job, end=end_of(minutes))
    try:
        if workers > 1:
            return _run_several(job, workers, tell)
        with terminable(job.end):
            return work(job, tell=tell)
    except KeyboardInterrupt:
        if not is_over(job.end):
            raise
        tell("the time is up")
        return count(job, job.queue().states())


def _run_several(job: Work, workers: int, tell: Tell) -> dict[str, int]:
    queue = job.queue(tell)
    queue.fill()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_main, args=(job, tell)) for _ in range(workers)]
    try:
        with _ctrl_c_held_back():
            for process in processes:
                process.start()
        _watch(job, queue, processes, tell)
    except KeyboardInterrupt:
        tell("stopping: what is at work is saved and given back")
        _stop(processes)
        raise
    gone = [process for process in processes if process.exitcode]
    if gone:
        tell(f"{len(gone)} of {counted(workers, 'worker')} ended early")
    return count(job, queue.states())


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, and pass over the processes that begin inside.

    A terminal sends it to all of them. In those it would be a traceback where they still import,
    and, with the SIGTERM by which they are stopped, a second signal while they give back.
    """
    resource_tracker.ensure_running()  # which lets Ctrl-C through again where it has to be begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(processes: list[Any]) -> None:
    """Have workers save and give back; whoever insists has them give back alone.

    A worker passes over what comes too soon after the first: however often somebody asks, it is
    passed on.
    """
    while alive := [process for process in processes if process.is_alive()]:
        with suppress(KeyboardInterrupt):
            for process in alive:
                os.kill(process.pid, signal.SIGTERM)
            for process in alive:
                process.join()


def _watch(job: Work, queue: Queue, processes: list[Any], tell: Tell) -> None:
    """Tell how the study goes while the workers are at it."""
    with terminable(job.end):
        before: dict[str, str] = {}
        while True:
            alive = [process for process in processes if process.is_alive()]
            try:
                with answering(job.url):
                    states = queue.states()
                    records = queue.records() if states != before else {}
            except UserError:  # the workers say so, where they need it before it answers again
                if not alive:
                    raise
                states, records = before, {}
            for experiment in job.experiments:
                key = experiment.key
                if states.get(key) == before.get(key):
                    continue
                if states.get(key) == "running":
                    tell(f"{key}: {job.bench.study.title_of(experiment)}")
                elif states.get(key) == "done" and before:
                    tell(f"{key}: {_summary(job, records[key])}; {_progress(job, states)}")
            before = states
            if not alive:
                return
            for process in alive:
                process.join(timeout=1.0 / len(alive))


def _main(job: Work, tell: Tell) -> None:
    """A worker's process; what begins and ends is told by the process that watches them all."""
    if job.threads:
        import torch

        torch.set_num_threads(job.threads)
    try:
        with terminable(), answering(job.url):
            work(job, tell_within=tell)
    except KeyboardInterrupt:
        sys.exit(130)
    except (UserError, OSError) as error:
        print(f"multibranch study: {error}", file=sys.stderr)
        sys.exit(2)
