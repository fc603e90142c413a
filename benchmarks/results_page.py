"""docs/results.md from the recorded runs in benchmarks/results: no figure is typed by hand.

python benchmarks/results_page.py            write docs/results.md
python benchmarks/results_page.py --check    say whether it is up to date
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multibranch.study.bench import Bench
from multibranch.study.markdown import grid, markdown
from multibranch.study.plan import load_study
from multibranch.study.reporting import read_recorded
from multibranch.study.results import signed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"

INTRODUCTION = """# Results

What this code gave on real data, from the records in [benchmarks/results](../benchmarks/results).
Every line of this page is written by `python benchmarks/results_page.py` from those files, and a
test compares the two. Scores compare runs on the same data with each other; none is one of the
paper's, whose corpora these are not. How to run and extend the studies: [study.md](study.md)."""


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    files = sorted(folder.glob("*.json"))
    parts, shown = [INTRODUCTION], set()
    for heading, start, section in SECTIONS:
        found = [path for path in files if path.name.startswith(start)]
        if not found:
            continue
        shown |= set(found)
        if heading:
            parts.append(f"## {heading}")
        for path in found:
            parts += section(path, json.loads(path.read_text(encoding="utf-8")))
    rest = [path for path in files if path not in shown]
    if rest:
        parts += ["## Further records", _further(rest)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _source(path: Path, content: dict[str, Any], *more: str) -> str:
    """Where the figures of a section come from."""
    said = [f"Record: [{path.name}](../benchmarks/results/{path.name})."]
    where = [str(content[name]) for name in ("device", "machine") if content.get(name)]
    if content.get("torch"):
        where.append(f"PyTorch {content['torch']}")
    if where:
        said.append(f"Machine: {', '.join(where)}.")
    text = " ".join([*said, *more])
    return text + (f"\n\n```sh\n{content['command']}\n```" if content.get("command") else "")


def _note(content: dict[str, Any]) -> str:
    """What a record says of how it came about, as a sentence."""
    note = str(content.get("note", ""))
    return f"{note[0].upper()}{note[1:].rstrip('.')}." if note else ""


def study(path: Path, content: dict[str, Any]) -> list[str]:
    """A recorded study: its own report, less one level."""
    bench = Bench(study=load_study(content["study"]), output=Path("runs/study"))
    text = markdown(read_recorded(path, bench), level=2)
    drivers = content.get("drivers") or []
    return [text, _source(path, {"command": "\n".join(drivers)} if drivers else {})]


def two_stage(path: Path, content: dict[str, Any]) -> list[str]:
    """The paper's procedure, as benchmarks/two_stage.py records it."""
    rows: list[list[str]] = []
    signatures, first = set(), None
    for stage in content["stages"]:
        (weights, scores), *_ = stage["scores"].items()
        signature = scores["signature"].split(" {")[0]
        signatures.add(signature)
        first = scores["test_bleu"] if first is None else first
        cosines = list(stage["branch_similarity"].values())
        rows.append(
            [
                stage["name"],
                f"{scores['test_bleu']:.2f}",
                "–" if len(rows) == 0 else signed(scores["test_bleu"] - first),
                weights,
                f"{scores['length_penalty']:g}",
                f"{stage['updates']:,}",
                str(stage["epochs"]),
                f"{stage['seconds']:.0f}",
                "–" if not cosines else f"{sum(cosines) / len(cosines):.3f}",
            ]
        )
    header = ["stage", "BLEU", "− first", "weights", "length penalty", "updates", "epochs"]
    header += ["seconds", "branches' cosine"]
    text = "One seed; the length penalty is the best on the validation set. Score: "
    text += ", ".join(f"`{signature}`" for signature in sorted(signatures)) + "."
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def code(path: Path, content: dict[str, Any]) -> list[str]:
    """Code generation, as benchmarks/code_generation.py records it."""
    if "runs" not in content:
        return [f"### {path.stem}", _source(path, content)]
    rows = []
    for row in content["runs"]:
        scores, against = row["scores"], row.get("against_baseline") or {}
        gain, printed = against.get("sentence_bleu"), row.get("paper") or ("–", "–")
        rows.append(
            [
                row["run"],
                f"{row.get('parameters', 0) / 1e6:.1f}M",
                f"{scores['sentence_bleu']:.2f}",
                "–" if gain is None else f"{signed(gain['difference'])} {_interval(gain)}",
                printed[0],
                f"{scores['bleu']:.2f}",
                f"{scores['exact_match']:.2f}",
                f"{scores['pov']:.2f}",
                printed[1],
                f"{row['valid_only']['sentence_bleu']:.2f}",
                f"{row['valid_only']['pov']:.2f}",
                f"{row['distinct_outputs']:,}",
                f"{scores['unknown']:.2f}%",
                str(row.get("epochs", "–")),
                "patience" if row.get("converged") else "time",
                str(row.get("seconds", "–")),
            ]
        )
    header = ["run", "size", "sentence BLEU", "− baseline (95%)", "paper's", "corpus BLEU", "exact"]
    header += ["PoV", "paper's", "valid only: BLEU", "PoV", "distinct outputs", "`<unk>` best"]
    header += ["epochs", "ended by", "seconds"]
    first = content["runs"][0]["scores"]["signatures"] if content["runs"] else {}
    text = f"{content['outputs']:,} outputs; the paper's figures are of another corpus. Scores: "
    text += ", ".join(f"`{first[name]}`" for name in ("sentence_bleu", "pov") if name in first)
    commands = list(dict.fromkeys(row["command"] for row in content["runs"] if "command" in row))
    said = {**content, "command": "\n".join([*commands, content.get("command", "")]).strip()}
    return [f"### {path.stem}", grid(header, rows), _source(path, said, text + ".", _note(content))]


def _interval(gain: dict[str, Any]) -> str:
    low, high = gain["interval"]
    return f"[{signed(low)}, {signed(high)}]"


def understanding(path: Path, content: dict[str, Any]) -> list[str]:
    """Understanding, as benchmarks/understanding.py records it."""
    if "summary" not in content:
        return [f"### {path.stem}", _source(path, content)]
    summary, signatures = content["summary"], set()
    header, columns = ["system"], []
    for task, systems in summary.items():
        found = next(iter(systems.values()))
        for place, name in enumerate(found["best"]):
            columns.append((task, name))
            header.append(f"{task} {name}")
            signatures.add(found["best"][name].get("signature", ""))
            if place == 0 and any(each.get("paper") for each in systems.values()):
                columns.append((task, "paper"))
                header.append("paper")
    names = dict.fromkeys(system for systems in summary.values() for system in systems)
    rows = [
        [name, *(_understood(summary[task].get(name), score) for task, score in columns)]
        for name in names
    ]
    settings = []
    for task, systems in summary.items():
        found = next(iter(systems.values()))
        seeds = len(next(iter(found["best"].values()))["values"])
        settings.append(f"{task} {seeds} seeds at {found['learning_rate']:g}")
    text = (
        "The best epoch on the validation set, mean ± deviation. Seeds and learning rates: "
        f"{', '.join(settings)}. The paper's are RoBERTa-large's. "
        f"{content.get('seconds', 0):.0f} seconds in all. Scores: "
    )
    text += ", ".join(f"`{each}`" for each in sorted(signatures) if each) + "."
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def _understood(found: dict[str, Any] | None, score: str) -> str:
    """One cell: a system's mean score and deviation, or what the paper has for it."""
    if found is None:
        return "–"
    if score == "paper":
        return f"{found['paper']:.1f}" if found.get("paper") else "–"
    each = found["best"][score]
    spread = each.get("deviation")
    return f"{each['mean']:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def branching_cost(path: Path, content: dict[str, Any]) -> list[str]:
    """What branches cost in fine-tuning, as benchmarks/branching_cost.py records it."""
    rows = []
    for measured in content["measured"]:
        way = "CUDA graphs" if measured["graphs"] else "one operation after the other"
        rows += [[way, name, f"{ratio:.3f}"] for name, ratio in measured["ratio"].items()]
    header = ["updates run as", "encoder", "time of an update, the plain encoder's being 1"]
    return [f"### {path.stem}", grid(header, rows), _source(path, content)]


def loss_curves(path: Path, content: dict[str, Any]) -> list[str]:
    """Training with and without the fast paths, as benchmarks/loss_curves.py records it."""
    rows = [
        [
            str(row["update"]),
            f"{row['fast']:.4f}",
            f"{row['reference']:.4f}",
            f"{row['difference']:+.4f}",
            f"{row['deviation_between_seeds']:.4f}",
            f"{row['deviation_of_differences']:.4f}",
        ]
        for row in content["comparison"]
    ]
    header = ["update", "fast", "reference", "apart", "deviation: between seeds", "of differences"]
    seeds = len({run["seed"] for run in content["runs"]})
    text = f"Means over {seeds} seeds of the training loss; the last row is the validation loss."
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def profile(path: Path, content: dict[str, Any]) -> list[str]:
    """Where the time of an update goes, as benchmarks/profile_training.py records it."""
    paths = [row for row in content["results"] if "by_kind" in row]
    kinds = list(dict.fromkeys(kind for row in paths for kind in row["by_kind"]))
    header = ["an update", *(row["name"] for row in paths)]
    rows = [
        ["ms on the clock", *(f"{row['milliseconds']:.2f}" for row in paths)],
        ["kernels", *(f"{row['kernels_an_update']:,.0f}" for row in paths)],
        ["ms in them", *(f"{row['milliseconds_in_kernels']:.2f}" for row in paths)],
        *(
            [f"ms: {kind}", *(f"{row['by_kind'].get(kind, 0):.2f}" for row in paths)]
            for kind in kinds
        ),
    ]
    return [f"### {path.stem}", grid(header, rows), _source(path, content, _note(content))]


def training(path: Path, content: dict[str, Any]) -> list[str]:
    """Speed of training, as benchmarks/training.py records it."""
    rows = []
    for row in content.get("results", []):
        memory, first = row.get("peak_memory_gib"), row.get("seconds_to_first_update")
        rows.append(
            [
                row["name"],
                f"{row['tokens_per_second']:,.0f}",
                f"{row.get('parameters', 0) / 1e6:.1f}M",
                "–" if memory is None else f"{memory:.2f}",
                "–" if first is None else f"{first:.0f}",
            ]
        )
    header = ["model", "target tokens a second", "size", "peak GiB", "seconds to first update"]
    parts = [f"### {path.stem}"] + ([grid(header, rows)] if rows else [])
    if "startup" in content:
        seconds = ", ".join(f"{each:.1f}" for each in content["startup"]["seconds"])
        parts.append(f"Seconds from {content['startup']['name']}: {seconds}.")
    return [*parts, _source(path, content, _note(content))]


def _further(paths: list[Path]) -> str:
    rows = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        said = content if isinstance(content, dict) else {}
        where = said.get("device") or said.get("machine") or "–"
        command = f"`{said['command']}`" if said.get("command") else "–"
        rows.append([f"[{path.name}](../benchmarks/results/{path.name})", str(where), command])
    return grid(["record", "machine", "command"], rows)


Section = Callable[[Path, dict[str, Any]], list[str]]
SECTIONS: list[tuple[str, str, Section]] = [
    ("", "study-", study),
    ("TED talks, German → English: two stages", "ted-two-stage", two_stage),
    ("Code generation", "code-", code),
    ("Understanding", "understanding-", understanding),
    ("What branches cost in fine-tuning", "branching-cost-", branching_cost),
    ("Speed of training", "training-", training),
    ("The same losses with the fast paths and without", "loss-curves-", loss_curves),
    ("Where an update's time goes", "profile-", profile),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    text = page()
    if args.check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print("docs/results.md is up to date" if same else "docs/results.md is out of date")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
