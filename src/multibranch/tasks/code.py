"""Code generation: natural language to programs, decoded and scored as in the paper's Section 5.

A model writes one line of tokens, the layout among them (multibranch.text.code). Which language
they are in is what its text pipeline says. Scores: the mean of the outputs' sentence BLEU, corpus
BLEU, exact match, and PoV, the percentage of valid programs, beside that of the references, which
no model is expected to pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.decoding import Hypothesis, Translator
from multibranch.decoding.options import best_texts
from multibranch.decoding.translator import saved_options
from multibranch.directory import load_text, read_config
from multibranch.disk import naming, replaced_file
from multibranch.errors import UserError, counted
from multibranch.metrics import (
    Score,
    exact_match,
    mean_sentence_bleu,
    multi_bleu,
    parses,
    pov,
)
from multibranch.nn import MultiBranchTransformer
from multibranch.tasks.evaluation import search_of
from multibranch.text import TextPipeline
from multibranch.text.code import LANGUAGES
from multibranch.text.pipeline import SIDES
from multibranch.training import Config
from multibranch.training.config import CODE_LENGTH

# Source tokens decoded together on a GPU: the logits of a large vocabulary are what fills memory.
GPU_BATCH_TOKENS = 4096


class CodeGenerator:
    """Writes code with a model.

        CodeGenerator.load("runs/code-java-mat").generate(["Returns the name."])

    The `text` of a hypothesis is its line of tokens; `code_to_text` formats it.
    """

    def __init__(self, translator: Translator, *, defaults: dict[str, Any] | None = None) -> None:
        self.translator = translator
        self.language = language_of(translator.text)
        self._defaults: dict[str, Any] = {"max_length": CODE_LENGTH, **(defaults or {})}

    @classmethod
    def load(cls, folder: str | Path, **how: Any) -> "CodeGenerator":
        """The model of a directory; `how` is what Translator.load takes."""
        check_model(folder)
        said = saved_options(folder).get("max_length")
        limits = {} if said is None else {"max_length": said}
        return cls(Translator.load(folder, **how), defaults=limits)

    def generate(
        self,
        lines: Sequence[str],
        *,
        valid_first: bool = False,
        batch_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
        **search: Any,
    ) -> list[list[Hypothesis]]:
        """Hypotheses for every line, best first; `search` are fields of SearchOptions.

        valid_first: of all that the beam found, those that parse come before the others.
        """
        search = {**self._defaults, **search}
        wanted = search.get("n_best", 1)
        if valid_first and not search.get("sample"):
            search["n_best"] = self.translator.options(**search).beam
        if batch_tokens is None and self.translator.device.type == "cuda":
            batch_tokens = GPU_BATCH_TOKENS
        found = self.translator.generate(
            lines, tokenised_output=True, batch_tokens=batch_tokens, progress=progress, **search
        )
        if valid_first:
            return [valid_ones_first(each, self.language)[:wanted] for each in found]
        return found


@dataclass
class CodeOutput:
    """What a model wrote for a split, beside what it should have written, as lines of tokens.

    unknowns: for every output, at how many of its tokens <unk> was the most probable.
    """

    name: str
    words: list[str]
    reference_words: list[str]
    language: str
    unknowns: list[int] | None = None

    @property
    def lines(self) -> list[str]:
        """One line an output: formatted code would take several."""
        return self.words

    def scores(self) -> dict[str, Score]:
        """All scores by their names."""
        found = {
            "sentence_bleu": mean_sentence_bleu(self.words, self.reference_words),
            "bleu": multi_bleu(self.words, self.reference_words),
            "exact_match": exact_match(self.words, self.reference_words),
            "pov": pov(self.words, self.language),
            "reference_pov": pov(self.reference_words, self.language),
        }
        if self.unknowns is not None:
            found |= self._unknown_scores(self.unknowns)
        return found

    def _unknown_scores(self, unknowns: list[int]) -> dict[str, Score]:
        # The end is a token too: <unk> may have been the most probable one there.
        tokens = sum(len(line.split(" ")) + 1 if line else 1 for line in self.words)
        affected = sum(count > 0 for count in unknowns)
        return {
            "unknown": Score(100 * sum(unknowns) / tokens, f"unknown|tokens:{tokens}"),
            "outputs_with_unknown": Score(
                100 * affected / len(unknowns), f"outputs-with-unknown|outputs:{len(unknowns)}"
            ),
        }


def evaluate_code(
    folder: str | Path,
    data: PreparedData | None = None,
    *,
    split: str = "test",
    sources: str | Path | None = None,
    references: str | Path | None = None,
    valid_only: bool = False,
    limit: int | None = None,
    output: str | Path | None = None,
    device: str = "auto",
    precision: str = "float32",
    branches: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
    **search: Any,
) -> dict[str, Any]:
    """Scores of a model directory on a split of prepared data, or on two files of its own.

    With `valid_only` the output is the best-scored hypothesis that parses, or the best-scored one
    where none does; "without_valid_only" then has the scores of the best-scored ones. `search` are
    fields of SearchOptions that differ from the model directory's.
    """
    generator = CodeGenerator.load(folder, device=device, precision=precision, branches=branches)
    source_lines, reference_lines = pairs_to_score(
        generator.language, data, split=split, sources=sources, references=references
    )
    tokenise = generator.translator.text.tokenise
    reference_words = [tokenise(line, "target") for line in reference_lines[:limit]]
    if valid_only:
        search["n_best"] = generator.translator.options(**search).beam
    found = generator.generate(source_lines[:limit], progress=progress, **search)
    best = code_output(str(folder), found, reference_words, generator.language)
    result: dict[str, Any] = {
        "model": str(folder),
        "task": "code",
        "language": generator.language,
        "split": str(sources) if sources else split,
        "outputs": len(found),
        "split_size": len(source_lines),
        "precision": precision,
        **search_of(folder, branches=branches, **search),
        "valid_only": valid_only,
    }
    chosen = best
    if valid_only:
        picked = [valid_ones_first(each, generator.language) for each in found]
        chosen = code_output(str(folder), picked, reference_words, generator.language)
        changed = sum(a != b for a, b in zip(chosen.words, best.words))
        result["without_valid_only"] = {**_values(best.scores()), "changed_outputs": changed}
    scores = chosen.scores()
    result |= _values(scores)
    result["signatures"] = {name: score.signature for name, score in scores.items()}
    if output is not None:
        text = "".join(line + "\n" for line in chosen.lines)
        with naming(output), replaced_file(Path(output)) as file:
            file.write(text.encode())
    return result


def code_output(
    name: str, found: Sequence[Sequence[Hypothesis]], references: list[str], language: str
) -> CodeOutput:
    """The first hypothesis of every line, beside the references."""
    unknowns = [hypotheses[0].unknowns if hypotheses else 0 for hypotheses in found]
    return CodeOutput(name, best_texts(found), references, language, unknowns)


def pairs_to_score(
    language: str,
    data: PreparedData | None,
    *,
    split: str,
    sources: str | Path | None = None,
    references: str | Path | None = None,
) -> tuple[list[str], list[str]]:
    """Source lines and their references in a language: of a prepared split, or of two files."""
    if (sources is None) != (references is None):
        raise UserError("files to score on come in twos: one of sources and one of references")
    if sources is not None and references is not None:
        names = (str(sources), str(references))
        lines = (_read(Path(sources)), _read(Path(references)))
    elif data is not None:
        held = language_of(data.text, data.folder)
        if held != language:
            raise UserError(
                f"the model writes {language} and {data.folder} holds {held}: give "
                "the folder that it was trained on"
            )
        names = (f"{split}.source.txt", f"{data.folder}/{split}.target.txt")
        lines = (data.lines(split, "source"), data.lines(split, "target"))
    else:
        raise UserError("there is nothing to score on: give a prepared folder or two files")
    if len(lines[0]) != len(lines[1]):
        raise UserError(
            f"{names[1]} has {counted(len(lines[1]), 'reference')} for the "
            f"{counted(len(lines[0]), 'line')} of "
            f"{names[0]}: one reference a line is needed"
        )
    return lines


def valid_ones_first(hypotheses: Sequence[Hypothesis], language: str) -> list[Hypothesis]:
    """Those that parse, then the others, each in the order of their scores."""
    return sorted(hypotheses, key=lambda each: not parses(each.text, language))


def language_of(text: TextPipeline, where: str | Path | None = None) -> str:
    """The programming language that a pipeline's target is in; another one is a UserError."""
    language = text.settings.target
    if text.settings.kind != "words" or language not in LANGUAGES:
        place = f"the text of {where}" if where else "the model's text"
        raise UserError(
            f"{place} goes to {language!r}, which is no language of the task code: it knows "
            f"{' and '.join(LANGUAGES)}"
        )
    return language


def check_model(folder: str | Path) -> None:
    """Refuse a model directory whose task is not code, or whose language is not known."""
    task = read_config(folder).get("task", "code")
    if task != "code":
        raise UserError(
            f"{folder} is a model of the task {task}, not of code: use `multibranch translate` or "
            "`multibranch evaluate` for it"
        )
    language_of(load_text(folder), folder)


def validation_score(
    config: Config, data: PreparedData
) -> Callable[[MultiBranchTransformer], tuple[float, str]]:
    """The mean sentence BLEU on the first validation pairs, for the trainer to call."""
    language_of(data.text, data.folder)  # refuses what is no code
    count = config.train.validate_sentences
    sources, targets = (data.lines("valid", side)[:count] for side in SIDES)
    references = [data.text.tokenise(line, "target") for line in targets]

    def score(model: MultiBranchTransformer) -> tuple[float, str]:
        precision = "float16" if next(model.parameters()).is_cuda else "float32"
        found = CodeGenerator(Translator([model], data.text, precision=precision)).generate(
            sources,
            beam=config.decode.beam,
            length_penalty=config.decode.length_penalty,
            max_length=config.longest_output,
            batch_tokens=config.decode.batch_tokens,
        )
        return mean_sentence_bleu(best_texts(found), references).value, "sentence BLEU"

    return score


def _values(scores: dict[str, Score]) -> dict[str, float]:
    return {name: round(score.value, 2) for name, score in scores.items()}


def _read(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8: convert it") from None
    return text.removesuffix("\n").split("\n") if text else []
