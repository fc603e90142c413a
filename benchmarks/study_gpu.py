"""Run trials of studies on one GPU within a time limit, without Optuna and sacreBLEU.

    python benchmarks/study_gpu.py PREPARED OUT --study multi30k-small --minutes 8 --workers 6

Runs the same trials as `multibranch study run`, in K processes that share the GPU. Models that
others start from are trained first, then trials of one architecture after each other, so that each
architecture is compiled once. With --together N, up to N trials are trained as one
(training/together.py). A trial that would not end in time is not started. When the time is up,
trials that are still training are stopped and left out; those being decoded get some more seconds.
OUT then holds

    trials.jsonl           one record per line
    hypotheses.jsonl.gz    the translations of the test set, one trial per line
    summary.json           the command, what was run, what was left

`multibranch study import NAME OUT` scores these and puts them in a storage. Models go to --work.

The exit status is 0 if some trials were done and none failed, even if time ran out before the
others, or if there were none to do; 1 if trials failed or none was done; 2 if nothing could be
started because of a wrong argument, study or folder.
"""

import argparse
import contextlib
import gzip
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multibranch.device import device_name
from multibranch.errors import UserError, counted
from multibranch.study.bench import Bench, parse_data
from multibranch.study.company import Companies
from multibranch.study.experiment import Experiment
from multibranch.study.order import next_experiment, takeable
from multibranch.study.plan import choose, load_study
from multibranch.study.trial import Stopped, run_trials
from multibranch.study.trial_folder import HYPOTHESES, read_lines, read_record, tidy
from origin import command

GRACE = 30  # seconds that a trial has to stop in, or to be decoded, when the time is up


@dataclass
class Job:
    """An experiment to be run, and the study that asks for it."""

    bench: Bench
    experiment: Experiment
    keep_model: bool


@dataclass
class Worker:
    """A process that runs one trial after another."""

    process: Any
    pipe: Any
    jobs: list[Job] = field(default_factory=list)  # at work: several are trained together
    began: float = 0.0
    group: str = ""
    stopping: bool = False


@dataclass
class Run:
    """One call of this program."""

    jobs: dict[str, Job]
    out: Path
    deadline: float
    together: int = 1
    states: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, dict[int, list[float]]] = field(default_factory=dict)  # by kind and size
    errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.companies = Companies(self.together, lambda one: self.jobs[one.key].bench)

    def expected(self, job: Job, size: int = 1) -> float:
        """How long a trial, one of `size` that are trained together, will take.

        This goes by others like it; without any, by the fastest updates seen.
        """
        if known := self.seconds.get(_kind(job.experiment)):
            return _of_size(known, size)
        updates = {_kind(each.experiment): _updates(each) for each in self.jobs.values()}
        shares = [
            _updates(job) * _of_size(known, size) / updates[kind]
            for kind, known in self.seconds.items()
            if updates[kind]
        ]
        return min(shares, default=0.0)

    def next(self, group: str) -> list[Job]:
        """The next trial that would still end in time, with others to be trained together."""
        experiments = [job.experiment for job in self.jobs.values()]
        left = self.deadline - time.monotonic()
        ready = takeable(experiments, self.states)
        late: dict[str, str] = {}
        while chosen := next_experiment(experiments, {**self.states, **late}, group=group):
            company = self.companies.find(chosen, ready, experiments)
            if self.expected(self.jobs[chosen.key], len(company)) <= left:
                return [self.jobs[one.key] for one in company]
            late |= {one.key: "late" for one in company}
        return []

    def take(self, worker: Worker, answer: tuple[str, Any]) -> None:
        """Write down what a worker says of its trials.

        Of several that did not all end, some may have: their records lie in their folders. Those
        that failed are tried again, each by itself: it may have been one of them alone.
        """
        assert worker.jobs
        said, content = answer
        took = time.monotonic() - worker.began
        if said == "done":
            for kind in {_kind(job.experiment) for job in worker.jobs}:
                known = self.seconds.setdefault(kind, {})
                known.setdefault(len(worker.jobs), []).append(took)
        for place, job in enumerate(worker.jobs):
            key, folder = job.experiment.key, job.bench.folder(job.experiment)
            record = content[place] if said == "done" else read_record(folder)
            if record is not None:
                self.states[key] = "done"
                self.errors.pop(key, None)
                self._write(job, record)
                how = f": {record.get('test_bleu')} in {took:.0f} s"
            elif said == "failed":
                self.states[key], self.errors[key], how = said, content, f" failed: {content}"
                if len(worker.jobs) > 1:
                    self.states[key] = "waiting"
                    self.companies.apart.add(key)
            else:
                self.states[key], how = said, f" {said}"
            print(f"{time.strftime('%H:%M:%S')} {key}{how}", flush=True)
        worker.jobs = []

    def _write(self, job: Job, record: dict[str, Any]) -> None:
        with (self.out / "trials.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        path = job.bench.folder(job.experiment) / HYPOTHESES
        if path.is_file():
            line = json.dumps({"key": record["key"], "lines": read_lines(path)}, ensure_ascii=False)
            with gzip.open(self.out / "hypotheses.jsonl.gz", "at", encoding="utf-8") as file:
                file.write(line + "\n")


def _of_size(known: dict[int, list[float]], size: int) -> float:
    """The seconds of so many trials trained together, going by the nearest number that is known.

    They share a GPU that is busy: twice as many take twice as long.
    """
    nearest = min(known, key=lambda other: abs(other - size))
    return statistics.median(known[nearest]) * size / nearest


def _kind(experiment: Experiment) -> str:
    """What trials that take equally long have in common."""
    second = experiment.start in ("continued", "proximal")
    stage = "pruned" if experiment.start == "pruned" else "second" if second else "first"
    return f"{experiment.group} {stage}{' twice' if experiment.r_drop else ''}"


def _updates(job: Job) -> int:
    """The updates that a trial trains for, where the study says so."""
    if job.experiment.start == "pruned":
        return 0
    return job.bench.study.limits(job.experiment).get("max_updates", 0)


def serve(pipe: Any, threads: int) -> None:
    """A worker's process: run what comes through the pipe."""
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process says when to stop,
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by this: training hears it, decoding goes on
    with contextlib.suppress(EOFError, ConnectionError):  # the first process is no more
        while _serve_one(pipe):
            pass


def _serve_one(pipe: Any) -> bool:
    """Run the next trial; whether there may be another one."""
    jobs = pipe.recv()
    if jobs is None:
        return False
    try:
        records = run_trials([(job.bench, job.experiment) for job in jobs])
        for job in jobs:
            if not job.keep_model:
                tidy(job.bench.folder(job.experiment), model=True)
    except Stopped:
        pipe.send(("stopped", None))
        return False
    except Exception as error:  # the process may be of no use after it
        pipe.send(("failed", f"{type(error).__name__}: {error}"[:2000]))
        return False
    pipe.send(("done", records))
    return True


def start(threads: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, threads), daemon=False)
    process.start()
    theirs.close()
    return Worker(process, ours)


def work(run: Run, count: int, threads: int) -> None:
    """Keep the workers busy until there is nothing left to begin."""
    workers = [start(threads) for _ in range(count)]
    try:
        while True:
            try:
                if not _turn(run, workers, threads):
                    return
            except KeyboardInterrupt:  # as if the time were up; the second one ends it at once
                if time.monotonic() >= run.deadline:
                    return
                run.deadline = time.monotonic()
    finally:
        for worker in workers:
            _end(worker)
            if worker.jobs:
                run.take(worker, ("stopped", None))


def _turn(run: Run, workers: list[Worker], threads: int) -> bool:
    """Give out work, and take what comes back; whether there is more to do."""
    out_of_time = time.monotonic() >= run.deadline
    for worker in workers:
        if not worker.jobs and not out_of_time:
            jobs = run.next(worker.group)
            if jobs:
                run.states |= {job.experiment.key: "running" for job in jobs}
                worker.jobs, worker.began = jobs, time.monotonic()
                worker.group = jobs[0].experiment.group
                worker.pipe.send(jobs)
        elif worker.jobs and out_of_time and not worker.stopping:
            os.kill(worker.process.pid, signal.SIGTERM)
            worker.stopping = True
    busy = [worker for worker in workers if worker.jobs]
    if not busy or time.monotonic() > run.deadline + GRACE:
        return False
    for pipe in multiprocessing.connection.wait([w.pipe for w in busy], timeout=0.5):
        worker = next(w for w in busy if w.pipe is pipe)
        try:
            answer = worker.pipe.recv()
        except (EOFError, ConnectionResetError):  # the latter where it had not begun to read yet
            ended = "stopped" if worker.stopping else "failed"
            answer = (ended, "its process ended")
        run.take(worker, answer)
        if answer[0] != "done":
            workers[workers.index(worker)] = _replaced(worker, threads, out_of_time)
    return True


def _replaced(worker: Worker, threads: int, out_of_time: bool) -> Worker:
    _end(worker)
    return worker if out_of_time else start(threads)


def _end(worker: Worker) -> None:
    """End a worker, whatever it does."""
    with contextlib.suppress(OSError):
        worker.pipe.send(None)
    worker.process.join(timeout=0 if worker.jobs else 5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def jobs_of(args: argparse.Namespace) -> dict[str, Job]:
    """Everything to be run, each after what it starts from."""
    offered: list[tuple[Bench, Experiment]] = []
    for name in args.study:
        study = load_study(name)
        if args.updates:
            study.updates = args.updates
        if args.second_updates:
            study.second_updates = args.second_updates
        data = parse_data(args.prepared, study)
        builtin = {corpus.name for corpus in study.corpora if corpus.folder is None}
        bench = Bench(study=study, output=args.work, data=data, device=args.device)
        for experiment in study.experiments(args.seeds):
            if experiment.corpus in data or experiment.corpus in builtin:
                offered.append((bench, experiment))
    wanted = {e.key for e in choose([experiment for _, experiment in offered], args.only)}
    found: dict[str, Job] = {}
    for bench, experiment in offered:
        other = found.get(experiment.key)
        if other is not None and other.bench.fingerprint(experiment) != bench.fingerprint(
            experiment
        ):
            raise UserError(
                f"{experiment.key} is not the same in {bench.study.name}: run the studies apart"
            )
        if other is None and experiment.key in wanted:
            found[experiment.key] = Job(bench, experiment, args.keep_models)
    if args.known:
        offered_trials = counted(len(found), "trial")
        left = left_to_run(found, known_trials(args.known))
        print(f"--known leaves out {len(found) - len(left)} of {offered_trials}", flush=True)
        found = left
    for job in found.values():
        job.bench.check([job.experiment])
        if job.experiment.parent is not None:
            found[job.experiment.parent.key].keep_model = True
    for job in {(id(j.bench), j.experiment.corpus): j for j in found.values()}.values():
        if job.bench.task(job.experiment) != "understanding":
            job.bench.open(job.experiment)  # a built-in corpus is made here, once
    return found


def known_trials(records: list[Path]) -> set[tuple[str, str]]:
    """Key and fingerprint of each trial of studies' records, as `study report --record` writes."""
    found = set()
    for path in records:
        try:
            trials = json.loads(path.read_text(encoding="utf-8"))["trials"]
            if not isinstance(trials, list):  # a search's record counts them
                raise ValueError("its trials are no list")
            found |= {(trial["key"], trial["fingerprint"]) for trial in trials}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no record of a study: {_said(error)}") from None
    return found


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def left_to_run(jobs: dict[str, Job], known: set[tuple[str, str]]) -> dict[str, Job]:
    """Without what is known already, unless something that is not starts from it."""
    needed: set[str] = set()
    for key, job in reversed(jobs.items()):  # each stands after what it starts from
        if key in needed or (key, job.bench.fingerprint(job.experiment)) not in known:
            needed.add(key)
            if job.experiment.parent is not None:
                needed.add(job.experiment.parent.key)
    return {key: job for key, job in jobs.items() if key in needed}


def mps(folder: Path, *, begin: bool) -> bool:
    """NVIDIA's multi-process service, which lets processes' kernels run beside each other."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("there is no nvidia-cuda-mps-control here", flush=True)
        return False
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(folder)
    words = [control, "-d"] if begin else [control]
    done = subprocess.run(words, input=None if begin else "quit\n", text=True, timeout=30)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", nargs="+", help="prepared folders, or NAME=FOLDER; then OUT")
    parser.add_argument("out", type=Path)
    parser.add_argument("--study", nargs="+", required=True, help="studies, which share models")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="train up to N trials as one"
    )
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--known",
        nargs="+",
        type=Path,
        default=[],
        metavar="RECORD",
        help="leave out trials of these records, run with the same settings, unless others left"
        " start from them",
    )
    parser.add_argument("--updates", type=int, help="in place of the study's")
    parser.add_argument("--second-updates", type=int, help="in place of the study's")
    parser.add_argument("--work", type=Path, default=Path("runs/study"), help="models go here")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep-models", action="store_true", help="also those nothing starts from")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's multi-process service")
    args = parser.parse_args()
    for name in ("minutes", "workers", "together", "seeds"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            print(f"study_gpu: --{name} must be above 0, not {value}", file=sys.stderr)
            return 2
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // args.workers)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        jobs = jobs_of(args)
    except UserError as error:
        print(f"study_gpu: {error}", file=sys.stderr)
        return 2
    served = args.mps and mps(args.work / ".mps", begin=True)
    run = Run(jobs, args.out, began + 60 * args.minutes, args.together)
    trials, workers = counted(len(jobs), "trial"), counted(args.workers, "worker")
    print(f"{trials}, {workers}, {counted(args.minutes, 'minute')}", flush=True)
    try:
        work(run, min(args.workers, len(jobs)), threads)
    finally:
        if served:
            mps(args.work / ".mps", begin=False)
    done = [key for key, state in run.states.items() if state == "done"]
    summary = {
        "command": command(),
        "device": device_name(args.device),
        "workers": args.workers,
        "seconds": round(time.monotonic() - began, 1),
        "done": len(done),
        "left": [key for key in jobs if run.states.get(key) != "done"],
        "errors": run.errors,
        "seconds_by_group": {
            group: {size: [round(each, 1) for each in took] for size, took in by_size.items()}
            for group, by_size in run.seconds.items()
        },
    }
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"{len(done)} of {trials} done in {summary['seconds']} s", flush=True)
    return 1 if run.errors or (jobs and not done) else 0


if __name__ == "__main__":
    sys.exit(main())
