"""The training loop: from a configuration and prepared data to a model directory.

    runs/x/config.json, model.safetensors, …   the model directory that later commands take
    runs/x/best, last, averaged                model directories of those weights
    runs/x/config.yaml, metrics.jsonl, tensorboard/
    runs/x/resume/                             what an exact continuation needs

Started again in the same folder, a run goes on where it stopped. Random numbers are a function of
the seed and the update, and batches of the seed and the epoch, so that on a CPU a run that was
stopped anywhere ends with the very weights of one that never was.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multibranch import configuration
from multibranch.data import PackedBatches, PaddedBatches, PreparedData
from multibranch.directory import save_model, write_json
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer, branch_similarity
from multibranch.nn.drop import Keep
from multibranch.training.averaging import Snapshots
from multibranch.training.checkpoint import Checkpoints, Progress
from multibranch.training.config import Config
from multibranch.training.display import Display, forget_after
from multibranch.training.optimiser import Optimiser
from multibranch.training.processes import join, leave, shard
from multibranch.training.schedule import inverse_sqrt
from multibranch.training.start import first_model
from multibranch.training.step import Objective
from multibranch.training.steps import choose_step
from multibranch.training.validation import validation_loss

# A score of the model on the validation sentences, and its name: (model) → (value, name).
Score = Callable[[MultiBranchTransformer], tuple[float, str]]

# What may change between a run and its continuation without making it another run.
FREE_KEYS = (
    "train.output",
    "train.max_epochs",
    "train.max_updates",
    "train.max_minutes",
    "train.patience",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.log_every",
    "train.tensorboard",
    "train.max_skipped",
    "train.device",
    "train.threads",
    "data.folder",
)


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    progress: Progress
    stopped: str  # why it ended
    interrupted: bool = False  # by a signal: there is more to do


class Trainer:
    """One run of training.

    Args:
        config: what to do.
        data: the prepared corpus.
        score: how to score the model on the validation sentences, where the configuration asks.
        quiet: say nothing.
    """

    def __init__(
        self, config: Config, data: PreparedData, *, score: Score | None = None, quiet: bool = False
    ) -> None:
        self.config = config.check()
        self.train = config.train
        self.data = data
        self.score = score
        self.folder = Path(self.train.output)
        if self.train.threads:
            torch.set_num_threads(self.train.threads)
        self.processes = join(self.train.device)
        self.device = self.processes.device
        first = self.processes.first
        self.display = Display(
            self.folder if first else None,
            quiet=quiet or not first,
            tensorboard=self.train.tensorboard,
        )
        self.checkpoints = Checkpoints(
            self.folder / "resume", keep=self.train.keep_checkpoints, tell=self.display.tell
        )
        self.snapshots = Snapshots(self.folder / "resume" / "snapshots", count=self.train.average)
        self.progress = Progress()
        self._signal: int | None = None

    # -- Setting up -------------------------------------------------------------------------

    def _set_up(self) -> None:
        self._claim_folder()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = first_model(self.config, self.data.text)
        for warning in caught:
            self.display.tell(f"warning: {warning.message}")
        self.batches = self._training_batches()
        self.model = model.to(self.device)
        self.precision = self._precision()
        sharded = self.train.sharding == "full" and self.processes.world > 1
        if self.precision == torch.bfloat16 and not sharded:
            self.model.to(torch.bfloat16)
        objective = Objective(
            self.model, smoothing=self.train.label_smoothing, r_drop=self.train.r_drop
        )
        if sharded:
            shard(objective, self.processes, dtype=self.precision)
        self.optimiser = Optimiser(
            self.model,
            betas=self.train.betas,
            epsilon=self.train.epsilon,
            weight_decay=self.train.weight_decay,
            clip_norm=self.train.clip_norm,
        )
        resumed = self.checkpoints.load()
        if resumed is not None:
            state, self.progress = resumed
            self.optimiser.load_state(state)
        if self.processes.first:
            forget_after(self.folder, self.progress.update)
        self.batches = self.batches.at_epoch(self.progress.epoch)
        self.step = choose_step(
            objective,
            self.optimiser,
            self.batches,
            processes=self.processes,
            train=self.train,
            sharded=sharded,
        )
        self._introduce(resumed is not None)

    def _claim_folder(self) -> None:
        """Refuse a folder that holds another configuration's run; else note ours in it."""
        place = self.folder / "config.yaml"
        if place.is_file():
            before = configuration.load(Config, place)
            changed = [
                line
                for line in configuration.differences(before, self.config)
                if line.split(":")[0] not in FREE_KEYS
            ]
            if changed:
                raise UserError(
                    f"{self.folder} holds a run of another configuration ({'; '.join(changed)}): "
                    "choose another train.output, or remove that folder"
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise UserError(
                f"{self.folder} is not empty and holds no run: choose another train.output"
            )
        if self.processes.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            beside = self.folder / ".config.yaml"
            beside.write_text(configuration.to_yaml(self.config), encoding="utf-8")
            beside.replace(place)
        self.processes.wait()

    def _training_batches(self) -> PackedBatches | PaddedBatches:
        kind = PackedBatches if self.config.data.layout == "packed" else PaddedBatches
        batches = kind(
            self.data.split("train"),
            tokens=self.train.tokens,
            seed=self.train.seed,
            rank=self.processes.rank,
            world=self.processes.world,
            max_length=min(self.config.data.max_length, self.train.tokens),
        )
        if len(batches) == 0:
            raise UserError(
                f"no training pair of {self.data.folder} is within data.max_length "
                f"({self.config.data.max_length}) and train.tokens ({self.train.tokens})"
            )
        return batches

    def _precision(self) -> torch.dtype:
        if self.train.precision == "auto":
            return torch.bfloat16 if self.device.type == "cuda" else torch.float32
        return torch.bfloat16 if self.train.precision == "bfloat16" else torch.float32

    def _introduce(self, resumed: bool) -> None:
        parameters = sum(p.numel() for p in self.model.parameters())
        report = str(self.batches.report)
        self.display.tell(
            f"{parameters / 1e6:.1f}M parameters, {len(self.batches):,} batches an epoch on "
            f"{self.processes.world} × {self.device.type}, {str(self.precision)[6:]}"
        )
        if report:
            self.display.tell(report)
        if resumed:
            self.display.tell(f"resuming after update {self.progress.update:,}")

    # -- The loop ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train until the configuration says stop, or a signal does."""
        try:
            self._set_up()
            with self.display, self._signals():
                why = "it had already ended" if self.progress.finished else self._epochs()
            interrupted = self._signal is not None
            if not interrupted and not self.progress.finished:
                self.progress.finished = True
                self._checkpoint(wait=True)
            if not interrupted:
                self._publish()
            self.checkpoints.wait()
            self.display.tell(f"stopped: {why}. The model is in {self.folder}")
            return Outcome(self.folder, self.progress, why, interrupted)
        except torch.cuda.OutOfMemoryError:
            raise UserError(
                f"the GPU's memory is not enough for batches of {self.train.tokens} tokens: set "
                f"train.tokens to {self.train.tokens // 2} and train.accumulate to "
                f"{2 * self.train.accumulate}"
            ) from None
        finally:
            leave(self.processes)

    def _epochs(self) -> str:
        """Run updates until there is a reason to stop, and give it."""
        self._since, self._saved = time.monotonic(), time.monotonic()
        self._reported = (time.monotonic(), 0)
        while True:
            reason = self._reason_to_stop()
            if reason:
                return reason
            if self.progress.batch >= len(self.batches):
                self.progress.epoch += 1
                self.progress.batch = 0
                self.batches = self.batches.at_epoch(self.progress.epoch)
                if self.train.max_epochs and self.progress.epoch >= self.train.max_epochs:
                    continue
            self._update()
            if self._is_time_to_report():
                self._report()
            if self._is_time_to_validate():
                self._validate()
            if time.monotonic() - self._saved > 60 * self.train.checkpoint_minutes:
                self._checkpoint()

    def _update(self) -> None:
        progress, train = self.progress, self.train
        last = min(progress.batch + train.accumulate, len(self.batches))
        numbers = range(progress.batch, last)
        tokens = self._tokens(numbers)
        update = progress.update + 1
        _seed(train.seed, update, self.processes.rank)
        self.step.run(
            self.batches,
            numbers,
            keeps=self._keeps(update),
            rate=inverse_sqrt(
                update,
                learning_rate=train.learning_rate,
                warmup=train.warmup,
                warmup_from=train.warmup_from,
            ),
            tokens=tokens,
        )
        progress.update = update
        progress.batch = last
        progress.tokens += tokens

    def _tokens(self, numbers: range) -> int:
        """The target tokens of these batches of all processes: every process knows the plan."""
        world = self.processes.world
        lengths = self.batches.target_lengths
        return max(
            1,
            sum(
                int(lengths[self.batches.plan.pairs(number * world + rank)].sum())
                for number in numbers
                for rank in range(world)
            ),
        )

    def _keeps(self, update: int) -> list[Keep]:
        """The factors of drop-branch for each pass of this update: the same in every process."""
        passes = 2 if self.train.r_drop else 1
        rates = self.model.drop_rates()
        if not bool((rates > 0).any()):
            return [None] * passes
        generator = torch.Generator().manual_seed(_mix(self.train.seed, update, -1))
        drawn = [self.model.draw_keep(generator=generator) for _ in range(passes)]
        if self.train.skip_dropped:
            return [keep.tolist() for keep in drawn]
        return [keep.to(self.device, non_blocking=True) for keep in drawn]

    def _reason_to_stop(self) -> str | None:
        progress, train = self.progress, self.train
        if self._stopped_by_signal():
            self._checkpoint(wait=True)
            return f"signal {signal.Signals(self._signal or signal.SIGTERM).name}"
        ended = None
        if train.max_updates and progress.update >= train.max_updates:
            ended = f"{progress.update:,} updates are done"
        elif train.max_epochs and progress.epoch >= train.max_epochs:
            ended = f"{progress.epoch} epochs are done"
        elif train.max_minutes and self._seconds() >= 60 * train.max_minutes:
            ended = f"{train.max_minutes:g} minutes have passed"
        elif train.patience and progress.stale >= train.patience:
            return f"no better validation in {progress.stale} (best at {progress.best_update:,})"
        if ended and self._last_validated != progress.update:
            self._validate()
        return ended

    _last_validated = -1

    def _is_time_to_report(self) -> bool:
        often = min(self.train.log_every, self.train.max_skipped)
        return self.progress.update % often == 0 or self.progress.update == 1

    def _is_time_to_validate(self) -> bool:
        if self.train.validate_every:
            return self.progress.update % self.train.validate_every == 0
        return self.progress.batch >= len(self.batches)

    def _report(self) -> None:
        """Read the device's statistics, show them, and stop a run that has gone wrong."""
        statistics = self.step.statistics()
        self.progress.skipped += statistics.skipped
        now = time.monotonic()
        before, tokens = self._reported
        self._reported = (now, self.progress.tokens)
        if statistics.streak >= self.train.max_skipped:
            self._save_bad_batch()
            raise UserError(
                f"the gradient was not finite for {statistics.streak} updates in a row, up to "
                f"update {self.progress.update}; the ids of the batch are in "
                f"{self.folder / 'bad_batch.json'}: lower train.learning_rate, or look at the data"
            )
        share, left = self._share()
        self.display.progress(
            {
                "update": self.progress.update,
                "epoch": self.progress.epoch,
                "loss": statistics.smoothed,
                "plain": statistics.plain,
                "norm": statistics.norm,
                "skipped": self.progress.skipped,
                "tokens_per_second": (self.progress.tokens - tokens) / max(now - before, 1e-9),
                "seconds": self._seconds(),
            },
            share=share,
            left=left,
        )

    def _validate(self) -> None:
        """Validation loss and score; keeps the best weights and a snapshot for the average."""
        started = time.monotonic()
        loss, plain = validation_loss(
            self.model,
            self.data.split("valid"),
            processes=self.processes,
            tokens=max(self.train.tokens, 8192),
            smoothing=self.train.label_smoothing,
        )
        record: dict[str, Any] = {
            "update": self.progress.update,
            "epoch": self.progress.epoch + (1 if self.progress.batch >= len(self.batches) else 0),
            "loss": loss,
            "plain": plain,
            "similarity": branch_similarity(self.model),
            "seconds": self._seconds(),
        }
        value = loss
        if self.train.validate_score and self.score is not None:
            score, name = self.score(self.model) if self.processes.first else (0.0, "")
            (score,) = self.processes.total(score)
            record.update(score=score, score_name=name)
            value = -score if self.train.stop_on == "score" else loss
        better = self.progress.best is None or value < self.progress.best
        if better:
            self.progress.best, self.progress.best_update = value, self.progress.update
            self.progress.stale = 0
        else:
            self.progress.stale += 1
        self._last_validated = self.progress.update
        self._keep_weights(better)
        if self.processes.first:
            self.display.validation(record, best=better)
        # Validation is not training: the clock of tokens a second stands still meanwhile.
        self._reported = (self._reported[0] + time.monotonic() - started, self._reported[1])

    def _keep_weights(self, better: bool) -> None:
        weights = self.optimiser.weights()
        if not self.processes.first:
            return
        if better:
            self._save_directory("best", weights)
        if self.train.average:
            before = list(self.progress.snapshots)
            self.progress.snapshots = self.snapshots.add(weights, self.progress.update, before)
            self._checkpoint()
            self.snapshots.prune([*before, *self.progress.snapshots])

    def _save_directory(self, name: str, weights: dict[str, torch.Tensor]) -> None:
        # The weights are float32 whatever the model computes in.
        whole = MultiBranchTransformer(**self.model.settings)
        whole.load_state_dict({key: tensor.cpu() for key, tensor in weights.items()})
        save_model(self.folder / name, whole, self.data.text, extra=self._extra(name))

    def _extra(self, name: str) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "weights": name,
            "training": {
                "updates": self.progress.update,
                "data": str(self.config.data.folder or self.config.data.builtin),
                "init_from": self.train.init_from,
                "seed": self.train.seed,
            },
            "decoding": asdict(self.config.decode),
        }

    def _checkpoint(self, *, wait: bool = False) -> None:
        state = self.optimiser.state()
        self.progress.seconds = self._seconds()
        self._since = time.monotonic()
        self._saved = time.monotonic()
        if self.processes.first:
            self.checkpoints.save(state, self.progress, wait=wait)

    def _publish(self) -> None:
        """The final model directories: last, averaged, and the one that stands for the run."""
        weights = self.optimiser.weights()
        if not self.processes.first:
            return
        self._save_directory("last", weights)
        chosen = "best"
        if self.train.average and self.progress.snapshots:
            self._save_directory("averaged", self.snapshots.average(self.progress.snapshots))
            chosen = "averaged"
        source = self.folder / chosen
        if not source.is_dir():
            source = self.folder / "last"
        for path in source.iterdir():
            _replace_file(path, self.folder / path.name)

    # -- Small things -----------------------------------------------------------------------

    def _seconds(self) -> float:
        """Time spent on this run, over all its continuations."""
        return self.progress.seconds + time.monotonic() - self._since

    _since = time.monotonic()

    def _share(self) -> tuple[float | None, float | None]:
        """How much of the run is done, and the seconds left, as far as can be told."""
        train, progress = self.train, self.progress
        shares = []
        if train.max_updates:
            shares.append(progress.update / train.max_updates)
        if train.max_epochs:
            epochs = progress.epoch + progress.batch / len(self.batches)
            shares.append(epochs / train.max_epochs)
        if train.max_minutes:
            shares.append(self._seconds() / (60 * train.max_minutes))
        if not shares:
            return None, None
        share = min(1.0, max(shares))
        return share, self._seconds() * (1 - share) / share if share else None

    def _save_bad_batch(self) -> None:
        if self.processes.first:
            number = max(0, self.progress.batch - 1)
            pairs = self.batches.indices(number).tolist()
            write_json(
                self.folder / "bad_batch.json",
                {"epoch": self.progress.epoch, "batch": number, "pairs": pairs},
            )

    def _stopped_by_signal(self) -> bool:
        if self.processes.world == 1:
            return self._signal is not None
        if self.progress.update % min(10, self.train.log_every):
            return False
        (signalled,) = self.processes.total(0.0 if self._signal is None else 1.0)
        if signalled and self._signal is None:
            self._signal = signal.SIGTERM
        return bool(signalled)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C ask for an end after the update in hand; a second one insists."""

        def ask(number: int, frame: Any) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = number
            self.display.tell("stopping after this update; what is done is saved")

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, ask) for number in wanted]
        try:
            yield
        finally:
            for number, handler in zip(wanted, before):
                signal.signal(number, handler)


def _mix(*numbers: int) -> int:
    """One seed from several numbers, so that neighbours have nothing in common."""
    sequence = np.random.SeedSequence([number & 0xFFFFFFFF for number in numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def _seed(seed: int, update: int, rank: int) -> None:
    """Set the random numbers of one update: dropout differs from process to process."""
    torch.manual_seed(_mix(seed, update, rank))


def _replace_file(source: Path, place: Path) -> None:
    """Copy a file over another so that there is always one of them, whole."""
    beside = place.with_name(f".{place.name}.new")
    beside.write_bytes(source.read_bytes())
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(place)
