"""The training loop: from a configuration and prepared data to a model directory.

    runs/x/config.json, model.safetensors, …   the model directory that later commands take
    runs/x/best, last, averaged                model directories of those weights
    runs/x/config.yaml, metrics.jsonl, tensorboard/
    runs/x/resume/                             what an exact continuation needs

Started again in the same folder, a run goes on where it stopped. Random numbers are a function of
the seed and the update, and batches of the seed and the epoch, so that on a CPU a run that was
stopped anywhere ends with the very weights of one that never was.
"""

import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

import torch
from torch import Tensor

from multibranch.data import PreparedData
from multibranch.errors import is_out_of_memory
from multibranch.training import setup, telling
from multibranch.training.bad_batches import BadBatches
from multibranch.training.clock import Clock
from multibranch.training.config import Config
from multibranch.training.determinism import deterministic
from multibranch.training.disk import refusals_explained
from multibranch.training.display import Display
from multibranch.training.keeping import Keeping
from multibranch.training.memory import out_of_memory
from multibranch.training.optimiser import Optimiser
from multibranch.training.processes import join
from multibranch.training.progress import Outcome, reason_to_stop, share_done
from multibranch.training.resuming import take_up
from multibranch.training.run_folder import RunFolder
from multibranch.training.seeds import draw_branches, seed_update
from multibranch.training.signals import Asked, Interruption
from multibranch.training.start import first_model
from multibranch.training.step import Objective, Step
from multibranch.training.steps import choose_step
from multibranch.training.together import Table
from multibranch.training.validation import Score, Validation

# A first model is drawn from PyTorch's own random numbers: by one run at a time.
_DRAWING = threading.Lock()

# Updates between two exchanges of what signals and clocks ask for, where processes must agree.
AGREE_EVERY = 10


class Trainer:
    """One run of training.

    Args:
        config: what to do.
        data: the prepared corpus.
        score: how to score the model on the validation sentences, where the configuration asks.
        watch: called with the record of every validation; an exception from it ends the run.
        table: where it meets other runs that are trained together with it (training/together.py).
        quiet: say nothing.
    """

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        *,
        score: Score | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        table: Table | None = None,
        quiet: bool = False,
    ) -> None:
        self.config = config.check()
        self.watch = watch
        self.table = table
        self.train = config.train
        self.data = data
        self.score = score if self.train.validate_score else None
        if self.train.threads:
            torch.set_num_threads(self.train.threads)
        self.processes = join(self.train.device)
        self.device = self.processes.device
        self.folder = RunFolder(Path(self.train.output))
        first = self.processes.first
        self.display = Display(
            self.folder.path if first else None,
            quiet=quiet or not first,
            tensorboard=self.train.tensorboard,
        )
        self.keeping = Keeping(self.folder.path, config, tell=self.display.tell)
        self.interruption = Interruption(quiet=quiet or not first)
        self.bad_batches = BadBatches(self.train.max_skipped)
        self._signal: int | None = None  # the one that stopped the run
        self._averaged: dict[str, Any] | None = None  # of averaged weights, if finite

    # -- Setting up -------------------------------------------------------------------------

    def _set_up(self) -> None:
        self.processes.first_does(lambda: self.folder.claim(self.config))
        self.processes.first_does(lambda: setup.check_ids(self.data))
        self.batches = setup.training_batches(self.config, self.data, self.processes)
        self.progress, state = take_up(
            self.keeping.checkpoints,
            self.train,
            self.data,
            self.processes,
            tell=self.display.tell,
        )
        self._build(state)
        self.batches = self.batches.at_epoch(self.progress.epoch)
        parts = (self.objective, self.optimiser, self.batches)
        if self.table is not None:
            self.step: Step = self.table.seat(*parts, self.train, update=self.progress.update)
        else:
            self.step = choose_step(
                *parts, processes=self.processes, train=self.train, sharded=self.sharded
            )
        if state is not None:
            self.step.resume(state["statistics"])
        self.validation = Validation(
            self.objective,
            setup.validation_pairs(self.data),
            processes=self.processes,
            tokens=setup.validation_tokens(self.train, self.device),
            score=self.score,
            precision=self.precision,
            sharded=self.sharded,
        )
        self.keeping.prepare(self.model, self.data.text)
        self._introduce(resumed=state is not None)

    def _build(self, state: dict[str, Tensor] | None) -> None:
        """Model, objective and optimiser, as the tensors of a checkpoint have them where it is."""
        with _DRAWING, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = first_model(self.config, self.data.text, resumed=state is not None)
        for warning in caught:
            self.display.tell(f"warning: {warning.message}")
        self.precision = setup.precision(self.train, self.device)
        self.sharded = self.train.sharding == "full" and self.processes.world > 1
        first = {name: tensor.detach() for name, tensor in model.named_parameters()}
        self.model, self.drop_rates = model, model.drop_rates()
        self.objective = Objective(
            self.model, smoothing=self.train.label_smoothing, r_drop=self.train.r_drop
        )
        setup.lay_out(self.objective, self.processes, self.precision, sharded=self.sharded)
        self.optimiser = Optimiser(
            self.model,
            betas=self.train.betas,
            epsilon=self.train.epsilon,
            weight_decay=self.train.weight_decay,
            clip_norm=self.train.clip_norm,
        )
        # A bfloat16 model has lost what its float32 masters are to start from.
        whole = {f"weight/{name}": tensor for name, tensor in first.items()}
        self.optimiser.load_state(whole if state is None else state)

    def _introduce(self, *, resumed: bool) -> None:
        """Start the clock and the display, and tell what begins or goes on."""
        seconds = self.progress.seconds
        share = self._share(seconds)
        self.clock = Clock(seconds=seconds, tokens=self.progress.tokens, share=share)
        self._saved_state = self._state_number()
        going_on = self.progress if resumed else None
        self.processes.first_does(lambda: self.display.start(going_on))
        for line in telling.beginning(
            self.batches,
            self.processes,
            self.precision,
            parameters=self._parameters(),
            resumed=going_on,
        ):
            self.display.tell(line)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    # -- The loop ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train until the configuration says stop, or a signal does."""
        try:
            with (
                self.interruption,
                refusals_explained(self.folder.path),
                deterministic(self.train.deterministic),
            ):
                self._set_up()
                with self.display:
                    why = self._epochs()
                    if self._signal is None:
                        self._finish()
                stopped = self._signal is not None
                place, progress = self.folder.path, self.progress
                self.display.tell(telling.ending(why, place, progress, stopped=stopped))
            self.processes.wait()  # for the first, which has been writing
            parameters = self._parameters()
            late = None if stopped else self.interruption.signal
            return Outcome(place, progress, why, self._signal, parameters, self._averaged, late)
        except Exception as error:
            if is_out_of_memory(error):
                raise out_of_memory(
                    self.train,
                    model_fits=hasattr(self, "step"),
                    together=1 if self.table is None else self.table.size,
                ) from None
            raise
        finally:
            self.keeping.background.close()
            self.folder.release()

    def _epochs(self) -> str:
        """Run updates until there is a reason to stop, and give it."""
        if self.train.init_from is not None and self.progress.update == 0:
            self._validate_start()
        while True:
            asked = self._asked()
            ended = reason_to_stop(self.train, self.progress, out_of_time=asked.out_of_time)
            if ended:
                self.folder.keep()
                if self.progress.validated != self.progress.update:
                    self._validate()
                return ended
            if asked.signal is not None:
                self._signal = asked.signal
                self._checkpoint()
                self.keeping.background.wait()
                return Signals(asked.signal).name
            if asked.checkpoint:
                self._checkpoint()
            self.keeping.background.check()
            if self.progress.batch >= len(self.batches):
                self.progress.epoch += 1
                self.progress.batch = 0
                self.batches = self.batches.at_epoch(self.progress.epoch)
                continue
            self._update()
            self.folder.keep()
            self._check_skipped()
            if self.progress.update % self.train.log_every == 0 or self.progress.update == 1:
                self._report()
            elif self.display.stands_still():
                self.display.move(self._pace(), **self._how_far())
            if self._is_time_to_validate():
                with self.clock.paused():
                    self._validate()

    def _asked(self) -> Asked:
        """What signals and clocks ask for. Processes agree on it, every few updates."""
        if self.table is not None:
            return self.table.asked(self.progress.update)
        train, signal = self.train, self.interruption.signal
        often = min(AGREE_EVERY, train.log_every)
        if self.processes.world > 1 and self.progress.update % often:
            return Asked()
        checkpoint = self.clock.minutes_unsaved() >= train.checkpoint_minutes
        checkpoint = checkpoint and self._saved_state != self._state_number()
        minutes = self.clock.seconds() / 60
        out_of_time = train.max_minutes is not None and minutes >= train.max_minutes
        signals, checkpoints, times_out = self.processes.total(
            0 if signal is None else 1, checkpoint, out_of_time
        )
        return Asked((signal or SIGTERM) if signals else None, bool(checkpoints), bool(times_out))

    def _update(self) -> None:
        progress, train = self.progress, self.train
        last = min(progress.batch + train.accumulate, len(self.batches))
        numbers = range(progress.batch, last)
        tokens = setup.count_tokens(self.batches, numbers)
        update = progress.update + 1
        if self.table is None:  # which draws for all
            seed_update(train.seed, update, self.processes.rank)
        self.step.run(
            self.batches,
            numbers,
            keeps=draw_branches(self.drop_rates, train, update, self.step.keeps_on),
            rate=setup.rate(train, update),
            tokens=tokens,
        )
        progress.update = update
        progress.batch = last
        progress.tokens += tokens
        self.bad_batches.remember(update, progress.epoch, numbers)

    # -- Reports and validation -------------------------------------------------------------

    def _is_time_to_validate(self) -> bool:
        if self.train.validate_every:
            return self.progress.update % self.train.validate_every == 0
        return self.progress.batch >= len(self.batches)

    def _check_skipped(self) -> None:
        """Stop a run whose gradients are not finite any more, and keep the ids of its batches."""
        most = self.train.max_skipped
        if self.progress.update % most == 0 and self.step.streak() >= most:
            give_up = self.bad_batches.give_up
            self.processes.first_does(lambda: give_up(self.folder.path, self.batches))

    def _report(self) -> None:
        """Read the device's statistics, show and record them."""
        found = self.step.statistics()
        self.progress.skipped += found.skipped
        pace = self._pace()
        self.clock.report(self.progress.tokens)
        *losses, tokens = self.processes.total(found.smoothed, found.plain, found.tokens)
        # A loss of 0 would be the best there is: that of updates that were all skipped is none.
        loss, plain = (each / tokens if tokens else math.nan for each in losses)
        self.display.progress(
            {
                **pace,
                "loss": loss,
                "plain": plain,
                "norm": found.norm,
                "learning_rate": setup.rate(self.train, self.progress.update),
                "skipped": self.progress.skipped,
                "seconds": self.clock.seconds(),
            },
            **self._how_far(),
        )

    def _pace(self) -> dict[str, Any]:
        """Where training stands, and its speed since the last report; the device is not asked."""
        progress = self.progress
        return {
            "update": progress.update,
            "epoch": progress.epoch + 1,  # the one that is under way
            "tokens_per_second": self.clock.speed(progress.tokens),
        }

    def _how_far(self) -> dict[str, float | None]:
        """How much of the run is done, and the seconds left."""
        share = self._share(self.clock.seconds())
        return {"share": share, "left": None if share is None else self.clock.left(share)}

    def _share(self, seconds: float) -> float | None:
        return share_done(self.train, self.progress, batches=len(self.batches), seconds=seconds)

    def _validate_start(self) -> None:
        """Note the loss before the first update: proximal initialisation starts at its model's."""
        with self.clock.paused():
            self.display.beginning({"update": 0, **self.validation.loss()})

    def _validate(self) -> None:
        """Measure the model; keep the best weights, and a snapshot for the average."""
        progress = self.progress
        weights = self.optimiser.weights()
        measured = self.validation.all(weights)
        record = {
            "update": progress.update,
            "epoch": progress.epoch + (1 if progress.batch else 0),  # the one that is under way
            **measured,
            "seconds": self.clock.seconds(),
        }
        better = progress.note_validation(
            self.train,
            loss=measured["loss"],
            plain=measured["plain"],
            score=measured.get("score"),
        )
        self.display.validation(record, best=better)
        if self.train.average:
            progress.add_snapshot(most=self.train.average)
        if self.processes.first:
            self.keeping.weights(weights, progress, best=better)
        if self.watch is not None:
            self.watch(record)

    # -- What is kept -----------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Keep everything that a continuation needs."""
        self.clock.save()
        if self._saved_state == self._state_number():
            return
        self._saved_state = self._state_number()
        self.progress.seconds = self.clock.seconds()
        running = self.step.running()
        sums = self.processes.total(*running[Step.OWN].tolist())
        running[Step.OWN] = torch.tensor(sums, dtype=running.dtype)
        state = {**self.optimiser.state(), "statistics": running}
        if self.processes.first:
            self.display.flush()
            self.keeping.checkpoint(state, self.progress)

    def _state_number(self) -> tuple[int, int]:
        """What tells one state of the run from another."""
        return self.progress.update, self.progress.validated

    def _finish(self) -> None:
        """The last checkpoint, and the model directories: last, averaged, and the run's own."""
        self._checkpoint()
        weights = self.optimiser.weights()
        if self.processes.first:
            measure = self.validation.of_other
            self._averaged = self.keeping.finish(weights, self.progress, measure, self.display)
