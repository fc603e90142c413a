"""Scores of translation models on a split of their corpus: decode, score, compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multibranch import configuration
from multibranch.data import PreparedData
from multibranch.decoding import Translator
from multibranch.decoding.options import SearchOptions, best_texts
from multibranch.decoding.translator import check_branches, saved_options
from multibranch.directory import WEIGHTS, load_text, read_config
from multibranch.errors import UserError, counted
from multibranch.metrics import Score, bleu, chrf, multi_bleu, paired_bootstrap, summarise, ter
from multibranch.text import TextPipeline
from multibranch.text.code import LANGUAGES
from multibranch.text.pipeline import SIDES


@dataclass
class Output:
    """What a model made of a split, beside what it should have made: detokenised and tokenised."""

    name: str
    lines: list[str]
    words: list[str]
    references: list[str]
    reference_words: list[str]
    lowercase: bool

    def scores(self) -> dict[str, Score]:
        """BLEU of sacreBLEU and of multi-bleu.perl, chrF and TER."""
        return {**self.quick_scores(), "ter": ter(self.lines, self.references)}

    def quick_scores(self) -> dict[str, Score]:
        """All of them but TER, which takes a hundred times as long."""
        return {
            "bleu": bleu(self.lines, self.references, lowercase=self.lowercase),
            "multi_bleu": multi_bleu(self.words, self.reference_words, lowercase=self.lowercase),
            "chrf": chrf(self.lines, self.references, lowercase=self.lowercase),
        }


def task_of(folder: str | Path) -> str:
    """What a model directory does: translation, code or understanding."""
    folder = Path(folder)
    run = folder / "config.yaml"
    if run.is_file() and configuration.peek(run, "task") == "understanding":
        return "understanding"  # a directory of transformers' making
    return str(read_config(folder).get("task", "translation"))


def data_of(folder: str | Path, given: str | None = None) -> PreparedData:
    """The prepared corpus to evaluate a model directory on: the one given, or its training's.

    One of another task or of other languages than the model's is a UserError.
    """
    data = _own_data(folder) if given is None else PreparedData.open(given)
    if data.manifest.get("kind") == "classification":
        raise UserError(
            f"{data.folder} holds labelled texts, for classifiers: give --data a folder of pairs "
            f"for {folder}"
        )
    text = load_text(folder)
    _check_same_task(folder, text, data)
    _check_same_languages(folder, text, data)
    return data


def _own_data(folder: str | Path) -> PreparedData:
    """The prepared corpus that a model directory was trained on."""
    training = read_config(folder).get("training") or {}
    if not training.get("data"):
        raise UserError(f"{folder} does not say what it was trained on: give --data FOLDER")
    place = Path(training["data"])
    if not place.is_dir():
        raise UserError(
            f"{folder} was trained on {place}, and from here there is no folder "
            f"{place.absolute()}: give --data FOLDER"
        )
    return PreparedData.open(place)


def _check_same_task(folder: str | Path, text: TextPipeline, data: PreparedData) -> None:
    """Refuse programs for a model that translates, and the reverse.

    What counts is what both write, not config.json's task: a model may have learnt to write
    programs as translations.
    """
    held, written = (
        "code" if each.settings.target in LANGUAGES else "translation" for each in (data.text, text)
    )
    if held != written:
        raise UserError(
            f"{data.folder} was prepared for the task {held} ({_direction(data.text)}), and "
            f"{folder} is for {written} ({_direction(text)}): give --data a folder of that task"
        )


def _check_same_languages(folder: str | Path, text: TextPipeline, data: PreparedData) -> None:
    """Refuse other languages, and the other direction; what names no language fits any."""
    for side in SIDES:
        held, own = data.text.settings.language(side), text.settings.language(side)
        if held and own and held != own:
            raise UserError(
                f"{data.folder} holds pairs {_direction(data.text)}, and {folder} is for "
                f"{_direction(text)}: give --data a folder of those languages, in that direction"
            )


def _direction(text: TextPipeline) -> str:
    """Both languages of a text, for a message."""
    return " → ".join(text.settings.language(side) or "?" for side in SIDES)


def checked_data(
    folder: str | Path,
    *,
    split: str,
    given: str | None = None,
    branches: Sequence[int] | None = None,
) -> PreparedData:
    """`data_of` a translation model, once all that decoding the split needs is seen to be there."""
    task = task_of(folder)
    if task != "translation":
        raise UserError(
            f"{folder} is a model of the task {task}, which is not scored beside translation models"
        )
    if not (Path(folder) / WEIGHTS).is_file():
        raise UserError(f"{folder} is incomplete: it has no file {WEIGHTS}")
    saved_options(folder)
    check_branches(folder, branches)
    data = data_of(folder, given)
    sources, targets = (len(data.lines(split, side)) for side in SIDES)
    if sources != targets:
        raise UserError(
            f"{data.folder} has {counted(sources, 'source')} and {counted(targets, 'target')} in "
            f"its split {split}: prepare it again"
        )
    return data


def decode_split(
    folder: str | Path,
    data: PreparedData,
    *,
    split: str = "test",
    limit: int | None = None,
    device: str = "auto",
    precision: str = "float32",
    branches: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
    **search: Any,
) -> Output:
    """Translate a split; `search` are search options that differ from the model directory's."""
    translator = Translator.load(folder, device=device, precision=precision, branches=branches)
    found = translator.generate(
        data.lines(split, "source")[:limit], tokenised_output=True, progress=progress, **search
    )
    words = best_texts(found)
    return make_output(str(folder), words, translator.text, data, split=split, limit=limit)


def search_of(
    folder: str | Path, *, branches: Sequence[int] | None = None, **search: Any
) -> dict[str, Any]:
    """How `decode_split` searches with a model directory, for a result; branches count from 1."""
    options = SearchOptions(**{**saved_options(folder), **search})
    return {
        "beam": options.beam,
        "length_penalty": options.length_penalty,
        "branches": None if branches is None else [number + 1 for number in branches],
    }


def make_output(
    name: str,
    words: list[str],
    text: TextPipeline,
    data: PreparedData,
    *,
    split: str,
    limit: int | None = None,
) -> Output:
    """Tokenised outputs beside the references of a split, both in both forms."""
    raw = data.lines(split, "target")[:limit]
    reference_words = [text.tokenise(line, "target") for line in raw]
    lines = [text.detokenise(line, "target") for line in words]
    # A corpus that comes tokenised has no other raw text than its words, detokenised.
    tokenised = text.settings.kind == "tokenised-bpe"
    references = [text.detokenise(line, "target") for line in reference_words] if tokenised else raw
    return Output(name, lines, words, references, reference_words, text.settings.lowercase)


def compare(system: Output, baseline: Output) -> dict[str, Any]:
    """Paired bootstrap of the difference in BLEU on tokenised text."""
    _check_same_references([system, baseline])
    return paired_bootstrap(
        baseline.words,
        system.words,
        system.reference_words,
        metric="multi-bleu",
        lowercase=system.lowercase,
    )


def over_seeds(
    outputs: Sequence[Output], each: Sequence[dict[str, Score]]
) -> dict[str, dict[str, Any]]:
    """Mean and deviation of every score over several seeds' outputs; `each` has those of each."""
    _check_same_references(outputs)
    summaries = {name: summarise([scores[name] for scores in each]) for name in each[0]}
    return {
        name: {"mean": s.mean, "deviation": s.deviation, "values": list(s.values)}
        for name, s in summaries.items()
    }


def _check_same_references(outputs: Sequence[Output]) -> None:
    for other in outputs[1:]:
        if other.reference_words != outputs[0].reference_words:
            raise UserError(
                f"{outputs[0].name} and {other.name} would be scored on different references: give "
                "--data FOLDER, one corpus for both"
            )
