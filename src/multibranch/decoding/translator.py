"""Text in, text out: a model directory, or several, as something that translates."""

import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding.ensemble import Ensemble
from multibranch.decoding.generate import generate
from multibranch.decoding.graphs import GraphRecorder
from multibranch.decoding.options import (
    BLANK,
    Hypothesis,
    SearchOptions,
    best_texts,
    read_options,
)
from multibranch.device import choose_device
from multibranch.directory import CONFIG, load_model, load_text, read_config
from multibranch.errors import UserError, counted
from multibranch.nn import MultiBranchTransformer, prune
from multibranch.nn.stepper import Stepper
from multibranch.text import TextPipeline
from multibranch.text.pipeline import SIDES

# What a Stepper is told for each precision.
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "float64": {"dtype": torch.float64},
    "int8": {"dtype": torch.float32, "int8": True},
}
_UNUSED = re.compile(r"<unused\d+>")
_ONE_EACH = "give one for every line, a blank one for none"


class Translator:
    """Translates lines with a model, or with several as an ensemble.

        Translator.load("runs/mat").translate(["Guten Morgen ."])

    Args:
        models: models with one vocabulary; they stay as they are.
        text: their text pipeline.
        precision: what to compute in (PRECISIONS); int8, for a CPU, rounds weights and states of
            all products to eight bits.
        defaults: search options other than SearchOptions' own defaults, by name.
        cuda_graphs: record steps and replay them; only a GPU can.
        strict: refuse a model that computes NaN, of which no hypothesis comes, as `load` does.
            While a model is trained that is nothing to end for.
    """

    def __init__(
        self,
        models: Sequence[MultiBranchTransformer],
        text: TextPipeline,
        *,
        precision: str = "float32",
        defaults: dict[str, Any] | None = None,
        cuda_graphs: bool = False,
        strict: bool = False,
    ) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
        if precision == "int8" and any(p.is_cuda for m in models for p in m.parameters()):
            raise UserError(
                "precision int8 is for a CPU: choose the device cpu, or float16 for a GPU"
            )
        self.text = text
        self._precision = precision
        self._strict = strict
        self.models = Ensemble([Stepper(model, **PRECISIONS[precision]) for model in models])
        if self.models.vocabulary < text.target_size:
            raise UserError(
                f"the vocabulary has {text.target_size} entries and the model only "
                f"{self.models.vocabulary}: they do not belong together"
            )
        self._defaults = defaults or {}
        self._never = unused_ids(text, self.models.vocabulary)
        if cuda_graphs and self.device.type != "cuda":
            raise UserError(
                f"leave --cuda-graphs out: they need a GPU, and the device is {self.device.type}"
            )
        self._recorder = GraphRecorder(self.device) if cuda_graphs else None

    @classmethod
    def load(
        cls,
        folders: str | Path | Sequence[str | Path],
        *,
        device: str | torch.device = "auto",
        branches: Sequence[int] | None = None,
        precision: str = "float32",
        cuda_graphs: bool = False,
    ) -> "Translator":
        """Load one model directory, or several of one vocabulary as an ensemble.

        Args:
            device: "auto" is a GPU where there is one.
            branches: decode with these branches of every attention layer only, from 0.
        """
        places = as_paths(folders)
        if not places:
            raise UserError("no model directory was given")
        where = choose_device(device)
        text = load_text(places[0])
        for place in places[1:]:
            if not _same_text(text, load_text(place)):
                raise UserError(
                    f"{place} has another vocabulary than {places[0]}: an ensemble needs models "
                    "that were prepared alike"
                )
        models = [load_model(place, device=where) for place in places]
        if branches is not None:
            models = [_with_branches(m, branches, place) for m, place in zip(models, places)]
        defaults = saved_options(places[0])
        return cls(
            models,
            text,
            precision=precision,
            defaults=defaults,
            cuda_graphs=cuda_graphs,
            strict=True,
        )

    @property
    def device(self) -> torch.device:
        return self.models.device

    @property
    def precision(self) -> str:
        """What it computes in."""
        return self._precision

    def options(self, **changes: Any) -> SearchOptions:
        """The search options: these changes, else the model directory's, else the defaults.

        A ratio that is asked for takes the place of the directory's maximum length, a beam that of
        its sampling.
        """
        known = [field.name for field in fields(SearchOptions)]
        wrong = [name for name in changes if name not in known]
        if wrong:
            raise UserError(f"there is no option {wrong[0]!r}; there are {', '.join(known)}")
        defaults = dict(self._defaults)
        if "max_ratio" in changes or "max_extra" in changes:
            defaults.pop("max_length", None)  # it would leave them without effect
        if "beam" in changes and "sample" not in changes:
            defaults.pop("sample", None)  # beside which there is none
        asked = SearchOptions(**{**defaults, **changes})
        unknown = [number for number in asked.never if not 0 <= number < self.text.target_size]
        if unknown:
            raise UserError(
                f"never names the id {unknown[0]}, and the target vocabulary has ids 0 to "
                f"{self.text.target_size - 1}"
            )
        return replace(asked, never=(*asked.never, *self._never))

    def translate(
        self, lines: Sequence[str], *, n_best: int = 1, **settings: Any
    ) -> list[str] | list[list[Hypothesis]]:
        """The best translation of every line, or with n_best > 1 the best few of each.

        A blank line stays blank, and one of control characters alone becomes so. `settings` are
        those of `generate`.
        """
        found = self.generate(lines, n_best=n_best, **settings)
        if n_best > 1:
            return found
        return best_texts(found)

    def generate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        tokenised: bool = False,
        tokenised_output: bool | None = None,
        batch_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
        stop: threading.Event | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for every line: best first and without two of the same text, or samples.

        Args:
            prefixes: what each translation must begin with; "" for nothing.
            tokenised: lines and prefixes are words separated by blanks already.
            tokenised_output: leave the output so too; as `tokenised` unless given.
            batch_tokens: source tokens decoded together, padding counted.
            progress: called with the number of lines that each batch finished.
            stop: once it is set, the search may break off with InterruptedError.
            options: fields of SearchOptions.
        """
        _check_lines(lines)
        asked = self.options(**options)
        shown = [line if line.strip() else "" for line in lines]
        encoded = self.text.encode(shown, side="source", tokenised=tokenised)
        # Of control characters alone only the end is left: such a line is blank too.
        filled = [place for place, source in enumerate(encoded) if len(source) > 1]
        sources = [encoded[place] for place in filled]
        begun: list[list[int]] | None = None
        if prefixes is not None:
            if len(prefixes) != len(lines):
                said = counted(len(prefixes), "prefix was given", "prefixes were given")
                raise UserError(f"{said} for {counted(len(lines), 'line')}")
            given = [prefixes[place] for place in filled]
            ends = self.text.encode(given, side="target", tokenised=tokenised)
            begun = [ids[:-1] for ids in ends]
        if progress is not None and len(filled) < len(lines):
            progress(len(lines) - len(filled))
        found = self.search(
            sources,
            asked,
            prefixes=begun,
            batch_tokens=batch_tokens,
            progress=progress,
            stop=stop,
        )
        plain = tokenised if tokenised_output is None else tokenised_output
        written = self.write(found, tokenised=plain, distinct=not asked.sample)
        results = [[BLANK] for _ in lines]
        for place, hypotheses in zip(filled, written):
            results[place] = hypotheses
        return results

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        batch_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
        stop: threading.Event | None = None,
    ) -> list[list[Hypothesis]]:
        """Ids in, hypotheses without texts out: the part that another engine does its own way.

        Once `stop` is set, the search may break off with InterruptedError.
        """
        return generate(
            self.models,
            sources,
            options,
            prefixes=prefixes,
            batch_tokens=batch_tokens,
            recorder=self._recorder,
            progress=progress,
            stop=stop,
            strict=self._strict,
        )

    def stream(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        chunk: int | None = None,
        **settings: Any,
    ) -> Iterator[tuple[str, list[Hypothesis]]]:
        """Every line with its hypotheses, in order, from input of any length.

        `chunk` lines are read, sorted and decoded together. Prefixes, where they are given, end
        where the lines do: else a UserError comes where one goes on. `settings` are those of
        `generate`.
        """
        if chunk is not None and chunk < 1:
            raise UserError(f"chunk must be at least 1, not {chunk}")
        _check_lines(lines)
        chunk = chunk or (16384 if self.device.type == "cuda" else 512)
        reading, beginning = iter(lines), None if prefixes is None else iter(prefixes)
        done = 0
        while lot := list(itertools.islice(reading, chunk)):
            given = None
            if beginning is not None:
                begun = list(itertools.islice(beginning, len(lot)))
                if len(begun) < len(lot):
                    said = counted(done + len(begun), "prefix", "prefixes")
                    raise UserError(f"there are more lines than the {said}: {_ONE_EACH}")
                given = begun if any(begun) else None
            done += len(lot)
            yield from zip(lot, self.generate(lot, prefixes=given, **settings))
        if beginning is not None and next(beginning, None) is not None:
            said = counted(done, "line")
            raise UserError(f"there are more prefixes than the {said}: {_ONE_EACH}")

    def write(
        self, found: list[list[Hypothesis]], *, tokenised: bool = False, distinct: bool = True
    ) -> list[list[Hypothesis]]:
        """Give the hypotheses of every sentence their texts; with `distinct`, no text twice."""
        ids = [hypothesis.ids for hypotheses in found for hypothesis in hypotheses]
        texts = iter(self.text.decode(ids, side="target", tokenised=tokenised))
        written = []
        for hypotheses in found:
            seen: dict[str, Hypothesis] = {}
            each = [replace(hypothesis, text=next(texts)) for hypothesis in hypotheses]
            for hypothesis in each:
                seen.setdefault(hypothesis.text, hypothesis)
            written.append(list(seen.values()) if distinct else each)
        return written


def _check_lines(lines: Iterable[str]) -> None:
    """Refuse one text in place of several: it would be taken for lines of one letter each."""
    if isinstance(lines, str):
        raise UserError("lines are a list of texts, not one text: put it into a list, as in [text]")


def as_paths(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    """One folder or several, as a list."""
    return [Path(f) for f in ([folders] if isinstance(folders, str | Path) else folders)]


def saved_options(folder: str | Path) -> dict[str, Any]:
    """The search options that a model directory was saved with, by name."""
    return read_options(read_config(folder).get("decoding"), Path(folder) / CONFIG)


def check_branches(folder: str | Path, branches: Sequence[int] | None) -> None:
    """Refuse branches, from 0, that a model directory has not by its config.json."""
    said = read_config(folder).get("branches")
    each = said if isinstance(said, list) else [said]
    if branches is None or not each or not all(isinstance(number, int) for number in each):
        return  # what is wrong with such a file is told when it is loaded
    if len(set(branches)) < len(branches) or max(branches) >= min(each):
        raise _no_such_branches(branches, min(each), folder)


def _with_branches(
    model: MultiBranchTransformer, branches: Sequence[int], folder: Path
) -> MultiBranchTransformer:
    try:
        return prune(model, keep=list(branches))
    except ValueError:
        fewest = min(block.attention.branches for block in model.blocks)
        raise _no_such_branches(branches, fewest, folder) from None


def _no_such_branches(branches: Sequence[int], fewest: int, folder: str | Path) -> UserError:
    chosen = ", ".join(str(branch + 1) for branch in branches)
    return UserError(
        f"cannot decode with branches {chosen}: the attention layers of {folder} have branches "
        f"1 to {fewest}; name each at most once"
    )


def _same_text(first: TextPipeline, second: TextPipeline) -> bool:
    return first.settings == second.settings and all(
        first.tokenizer(side).get_vocab() == second.tokenizer(side).get_vocab() for side in SIDES
    )


def unused_ids(text: TextPipeline, vocabulary: int) -> tuple[int, ...]:
    """Ids that only fill the vocabulary up: nothing was ever written with them."""
    tokenizer = text.tokenizer("target")
    first = text.target_size
    while first and _UNUSED.fullmatch(tokenizer.id_to_token(first - 1) or ""):
        first -= 1
    return tuple(range(first, vocabulary))
