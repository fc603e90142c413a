"""What translates for the service: one model, every choice of its branches, either engine.

Texts are encoded where requests come in and searched in the batcher's thread; see `run`.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding import Hypothesis, SearchOptions, Translator
from multibranch.decoding.attention import Inspection, inspect
from multibranch.decoding.generate import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, batches
from multibranch.decoding.options import BLANK
from multibranch.decoding.translator import saved_options
from multibranch.device import choose_device
from multibranch.directory import load_model, load_text
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer, prune
from multibranch.text import TextPipeline

ENGINES = ("torch", "ctranslate2")
_SMALL_LOT = 256  # source tokens below which a lot is not worth cutting in two
Branches = tuple[int, ...]


@dataclass(frozen=True)
class Translation:
    """The key of texts that may be translated in one batch: encoded texts are its items."""

    options: SearchOptions
    branches: Branches | None = None


@dataclass(frozen=True)
class Examination:
    """The key of texts whose attention is asked for: raw texts are its items, one a batch."""

    options: SearchOptions
    branches: Branches | None = None
    target: str | None = None


@dataclass(frozen=True)
class _Ready:
    """A model with some of its branches, and what decodes with it."""

    model: MultiBranchTransformer
    translator: Translator


class Engine:
    """A model directory, or an exported folder, that translates for many requests.

    Use `load`. `encode` may be called from any thread; `run` from one at a time.

    Args:
        name: "torch" or "ctranslate2".
        translator: decodes with all branches.
        model: the model itself, where there is one: its branches can be chosen and looked at.
        choices: choices of branches to keep ready; the one that was used longest ago goes first.
        batch_tokens: source tokens decoded together; None is 1024 a core, and 8192 on a GPU.
    """

    def __init__(
        self,
        name: str,
        translator: Translator,
        *,
        model: MultiBranchTransformer | None = None,
        defaults: dict[str, Any] | None = None,
        choices: int = 8,
        batch_tokens: int | None = None,
    ) -> None:
        self.name, self.translator, self.model = name, translator, model
        self.precision = translator.precision
        self.text: TextPipeline = translator.text
        self._defaults = defaults or {}
        self._choices = choices
        self._ready: OrderedDict[Branches, _Ready] = OrderedDict()
        on_cpu = translator.device.type == "cpu"
        self.cores = torch.get_num_threads() if on_cpu else 1
        self._batch_tokens = batch_tokens or (CPU_BATCH_TOKENS if on_cpu else GPU_BATCH_TOKENS // 8)
        # On a CPU every lot has one core: the operations of a step are far too small to be cut in
        # two, and on a machine with other work each cut waits for the slower half.
        self._pool = ThreadPoolExecutor(
            self.cores, "decoding", torch.set_num_threads if on_cpu else int, (1,)
        )
        self.layers = [block.attention.branches for block in model.blocks] if model else []
        self.branches = min(self.layers, default=0)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        engine: str = "torch",
        device: str = "auto",
        precision: str = "float32",
        choices: int = 8,
        batch_tokens: int | None = None,
    ) -> "Engine":
        """Load a model directory (torch) or what `multibranch export` wrote (ctranslate2)."""
        if engine not in ENGINES:
            raise UserError(f"the engine is one of {', '.join(ENGINES)}, not {engine!r}")
        if engine == "ctranslate2":
            from multibranch.export import CTranslate2Engine

            translator: Translator = CTranslate2Engine.load(
                folder, device=device, precision=precision
            )
            return cls(engine, translator, batch_tokens=batch_tokens)
        where, text = choose_device(device), load_text(folder)
        model, defaults = load_model(folder, device=where), saved_options(folder)
        return cls(
            engine,
            Translator([model], text, precision=precision, defaults=defaults, strict=True),
            model=model,
            defaults=defaults,
            choices=choices,
            batch_tokens=batch_tokens,
        )

    @property
    def batch_cost(self) -> int:
        """Source tokens that one batch of the service may hold, padding counted."""
        return self._batch_tokens * self.cores

    def options(self, **changes: Any) -> SearchOptions:
        """The search options: these, else the model's."""
        return self.translator.options(**changes)

    def chosen(self, numbers: Sequence[int] | None) -> Branches | None:
        """Branches as clients count them, from 1, as positions; None where that is all of them."""
        if numbers is None:
            return None
        if self.model is None:
            raise UserError(
                "an exported model has its branches folded into heads: to choose branches, serve "
                "the model directory with --engine torch"
            )
        positions = sorted({number - 1 for number in numbers})
        if len(positions) != len(numbers):
            raise UserError("every branch may be named once")
        if not positions or positions[0] < 0 or positions[-1] >= self.branches:
            raise UserError(
                f"the model's branches are numbered 1 to {self.branches}; choose at least one"
            )
        if len(positions) == self.branches and set(self.layers) == {self.branches}:
            return None
        return tuple(positions)

    def encode(self, texts: list[str], *, side: str = "source") -> list[list[int]]:
        """The ids of texts, ends included; only the end where a text is blank."""
        return self.text.encode(texts, side=side)

    def run(self, key: Any, items: list[Any], stop: threading.Event) -> list[Any]:
        """Translate encoded texts, or look at the attention for texts; one result each."""
        if isinstance(key, Translation):
            return self._translate(key, items, stop)
        return [self._examine(key, item, stop) for item in items]

    def _translate(
        self, key: Translation, sources: list[list[int]], stop: threading.Event
    ) -> list[list[Hypothesis]]:
        translator = self._with(key.branches).translator if key.branches else self.translator
        filled = [number for number, source in enumerate(sources) if len(source) > 1]
        results: list[list[Hypothesis]] = [[BLANK]] * len(sources)
        given = [sources[number] for number in filled]
        tokens = self._lot_tokens(given, key.options)
        for lot, found in self._in_lots(translator, given, key.options, tokens, stop):
            for number, hypotheses in zip(lot, translator.write(found)):
                results[filled[number]] = hypotheses
        return results

    def _in_lots(
        self,
        translator: Translator,
        sources: list[list[int]],
        options: SearchOptions,
        tokens: int,
        stop: threading.Event,
    ) -> list[tuple[list[int], list[list[Hypothesis]]]]:
        """Search lots of similar length side by side; the numbers of each with what was found."""
        if self.name == "ctranslate2":  # it does so itself
            found = translator.search(sources, options, batch_tokens=tokens)
            return [(list(range(len(sources))), found)]
        lots = list(batches([len(source) for source in sources], tokens))
        pending = [
            self._pool.submit(
                translator.search,
                [sources[n] for n in lot],
                options,
                batch_tokens=tokens,
                stop=stop,
            )
            for lot in lots
        ]
        wait(pending)  # all of them: no search may go on when the next batch begins
        return [(lot, one.result()) for lot, one in zip(lots, pending)]

    def _lot_tokens(self, sources: list[list[int]], options: SearchOptions) -> int:
        """As many tokens as make one lot a core, where there is enough for a lot each."""
        longest = max(map(len, sources), default=1)
        most = max(64, self._batch_tokens * 5 // max(5, options.beam))
        share = -(-len(sources) // self.cores) * longest
        return max(longest, min(most, max(share, _SMALL_LOT)))

    def _examine(self, key: Examination, text: str, stop: threading.Event) -> Inspection:
        if self.model is None:
            raise UserError("an exported model does not show its attention")
        ready = self._with(key.branches)
        look = partial(
            inspect,
            ready.model,
            self.text,
            text,
            target=key.target,
            translator=ready.translator,
            stop=stop,
            **_changes(key.options),
        )
        return self._pool.submit(look).result()

    def _with(self, branches: Branches | None) -> _Ready:
        """The model with these branches, kept for the next time; with all for None."""
        assert self.model is not None
        if branches is None:
            return _Ready(self.model, self.translator)
        if branches in self._ready:
            self._ready.move_to_end(branches)
            return self._ready[branches]
        while len(self._ready) >= self._choices:
            self._ready.popitem(last=False)
        model = prune(self.model, keep=list(branches))
        translator = Translator(
            [model], self.text, precision=self.precision, defaults=self._defaults, strict=True
        )
        ready = _Ready(model, translator)
        self._ready[branches] = ready
        return ready


def _changes(options: SearchOptions) -> dict[str, Any]:
    """Complete options for a translator that completes them once more.

    No request says what is never written: the model does, and the translator knows it.
    """
    names = (field.name for field in fields(options))
    return {name: getattr(options, name) for name in names if name != "never"}
