"""The scores of what code_generation.py decoded: OUTPUT/results is all they need, and parsers."""

import argparse
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from multibranch.data import PreparedData
from multibranch.decoding import Hypothesis
from multibranch.errors import UserError
from multibranch.metrics import parses, sentence_bleu
from multibranch.tasks.code import code_output, language_of, valid_ones_first
from multibranch.training import Config
from multibranch.training.config import CODE_LENGTH

NAMES = ("baseline", "narrow", *(f"mat-{rate}" for rate in (0.0, 0.1, 0.2, 0.3)))
SETTLED = "-settled"  # how the label of a run ends whose learning rate fell to zero
SAMPLES = 2000  # of the bootstrap
PATIENCES = (8000, 10000, 12000, 16000)  # updates, of which a scored run says when they were over


def references(data: PreparedData, count: int | None = None) -> list[str]:
    """The first so many references of the test set as lines of tokens."""
    lines = data.lines("test", "target")[:count]
    return [data.text.tokenise(line, "target") for line in lines]


def score(args: argparse.Namespace, data: PreparedData) -> dict[str, Any]:
    """Scores of the decoded files, with those of the best-scored hypotheses that parse."""
    files = [Path(name) for name in args.score] or sorted(
        (args.output / "results").glob("*.n-best.tsv.xz")
    )
    if not files:
        raise UserError(f"there is nothing to score in {args.output / 'results'}")
    language, target = language_of(data.text), references(data, args.limit)
    rows, each = [], {}
    for file in files:
        label = file.name.removesuffix(".n-best.tsv.xz")
        found = read_n_best(file, len(target))
        record = file.with_name(f"{label}.json")
        row: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {"run": label}
        best = code_output(label, found, target, language)
        valid = [valid_ones_first(hypotheses, language) for hypotheses in found]
        chosen = code_output(label, valid, target, language)
        row["scores"] = described(best.scores())
        row["distinct_outputs"] = len(set(best.words))
        row["most_repeated_output"] = Counter(best.words).most_common(1)[0][1]
        valid_ones = [parses(line, language) for line in best.words]
        row["invalid"] = invalid_outputs(best.words, valid_ones)
        row["valid_only"] = described(chosen.scores())
        row["valid_only"]["changed"] = sum(a != b for a, b in zip(best.words, chosen.words))
        row["paper"] = paper(language).get(row.get("name"))
        if "validation" in row:
            row["patience_over"] = {f"{n:,}": patience_over(row, n) for n in PATIENCES}
        rows.append(row)
        each[label] = np.array(
            [
                (sentence_bleu(line, wanted), 100.0 * valid_one)
                for line, wanted, valid_one in zip(best.words, target, valid_ones)
            ]
        )
    for row in rows:
        baseline = baseline_of(row["run"], list(each))
        if baseline is not None:
            row["against_baseline"] = difference(each[baseline], each[row["run"]], baseline)
    return {
        "language": language,
        "outputs": len(target),
        "distinct_references": len(set(target)),
        "runs": sorted(rows, key=place),
    }


def baseline_of(label: str, labels: list[str]) -> str | None:
    """The baseline that a run is compared with: one that settled if the run did."""
    found = [each for each in labels if each.startswith("baseline")]
    alike = [each for each in found if each.endswith(SETTLED) == label.endswith(SETTLED)]
    return None if label in found or not found else (alike or found)[0]


def place(row: dict[str, Any]) -> tuple[bool, int]:
    """Where a row stands: those that settled behind the others, in the order of the models."""
    return row["run"].endswith(SETTLED), NAMES.index(row["name"]) if "name" in row else -1


def invalid_outputs(words: list[str], valid: list[bool]) -> dict[str, int]:
    """How many outputs do not parse, and how many of these were cut off."""
    invalid = [line for line, parsed in zip(words, valid) if not parsed]
    cut_off = [line for line in invalid if len(line.split()) >= CODE_LENGTH]
    return {"outputs": len(invalid), "cut_off": len(cut_off)}


def patience_over(row: dict[str, Any], patience: int) -> dict[str, Any] | None:
    """Where a run would have ended with a patience of so many updates; None if nowhere.

    What a stopping rule does to the comparison can so be told from runs that went on for longer.
    Scores are recorded rounded: an equal one may have been better.
    """
    judged_from = row["settings"].get("train.judge_from", Config().train.warmup)
    best_update, best_score = 0, -1.0
    for line in row["validation"]:
        update = int(line.partition(":")[0].removeprefix("update "))
        score = float(line.rpartition(" BLEU ")[2])
        if update < judged_from:
            continue
        if score >= best_score:
            best_update, best_score = update, score
        elif update - best_update >= patience:
            return {"update": update, "best_update": best_update, "best_score": best_score}
    return None


def read_n_best(file: Path, count: int) -> list[list[Hypothesis]]:
    """The hypotheses of a file that `decode` wrote, best first."""
    found: list[list[Hypothesis]] = [[] for _ in range(count)]
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            number, value, unknowns, text = line.rstrip("\n").split("\t", 3)
            if int(number) >= count:
                raise UserError(f"{file} has outputs for more than the {count} references")
            found[int(number)].append(Hypothesis((), float(value), 0.0, int(unknowns), text))
    if not all(found):
        raise UserError(f"{file} has outputs for {sum(map(bool, found))} of {count} references")
    return found


def described(scores: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: round(score.value, 2) for name, score in scores.items()}
    values["length_ratio"] = round(scores["bleu"].details["ratio"], 4)
    values["signatures"] = {name: score.signature for name, score in scores.items()}
    return values


def difference(baseline: np.ndarray, system: np.ndarray, name: str) -> dict[str, Any]:
    """The system's sentence BLEU and PoV less the baseline's, with their 95% bootstrap intervals.

    baseline, system: (outputs, 2), the two scores of every output.
    """
    gain = system - baseline
    chance = np.random.default_rng(1)
    means = [gain[chance.integers(0, len(gain), len(gain))].mean(0) for _ in range(SAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return {"baseline": name} | {
        metric: {
            "difference": round(float(gain[:, at].mean()), 2),
            "interval": [round(float(low[at]), 2), round(float(high[at]), 2)],
        }
        for at, metric in enumerate(("sentence_bleu", "pov"))
    }


def table(result: dict[str, Any]) -> str:
    """The scores as Markdown, beside the paper's."""
    lines = [
        "| run | parameters | epochs | seconds | BLEU | corpus BLEU | exact | PoV | distinct "
        "| valid only: BLEU | PoV | <unk> best | paper: BLEU | PoV |",
        "|---|" + "---:|" * 13,
    ]
    for row in result["runs"]:
        scores, valid = row["scores"], row["valid_only"]
        names = ("sentence_bleu", "bleu", "exact_match", "pov")
        cells = [row["run"], f"{row.get('parameters', 0) / 1e6:.1f}M", row.get("epochs", "")]
        cells += [row.get("seconds", "")]
        cells += [f"{scores[name]:.2f}" for name in names] + [f"{row['distinct_outputs']:,}"]
        cells += [f"{valid['sentence_bleu']:.2f}", f"{valid['pov']:.2f}"]
        cells += [f"{scores['unknown']:.2f}%", *(row["paper"] or ("", ""))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    ceiling = result["runs"][0]["scores"]["reference_pov"]
    lines += ["", f"{result['outputs']:,} references, of which {ceiling:.2f}% parse."]
    return "\n".join(lines)


def paper(language: str) -> dict[Any, tuple[str, str]]:
    """BLEU and PoV of the paper's Table 8 by the names of runs; of another corpus than this."""
    from multibranch.study.paper import cells

    found: dict[Any, dict[str, str]] = {}
    for cell in cells(8):
        if cell.task == f"code-{language}" and cell.branches:
            name = "baseline" if cell.branches == 1 else f"mat-{cell.drop_branch}"
            found.setdefault(name, {})[cell.metric] = cell.printed
    return {name: (values["sentence-bleu"], values["pov"]) for name, values in found.items()}
