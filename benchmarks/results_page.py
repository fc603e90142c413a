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


def study(path: Path, content: dict[str, Any]) -> list[str]:
    """A recorded study: its own report, less one level."""
    bench = Bench(study=load_study(content["study"]), output=Path("runs/study"))
    text = markdown(read_recorded(path, bench), level=2)
    drivers = content.get("drivers") or []
    return [text, _source(path, {"command": "\n".join(drivers)} if drivers else {})]


def two_stage(path: Path, content: dict[str, Any]) -> list[str]:
    """The paper's procedure, as benchmarks/two_stage.py records it."""
    rows, signatures, first = [], set(), None
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
        gain = against.get("sentence_bleu")
        rows.append(
            [
                row["run"],
                f"{row.get('parameters', 0) / 1e6:.1f}M",
                f"{scores['sentence_bleu']:.2f}",
                "–" if gain is None else f"{signed(gain['difference'])} {_interval(gain)}",
                f"{scores['pov']:.2f}",
                f"{row['valid_only']['sentence_bleu']:.2f}",
                f"{row['valid_only']['pov']:.2f}",
                str(row.get("epochs", "–")),
                str(row.get("seconds", "–")),
            ]
        )
    header = ["run", "size", "sentence BLEU", "− baseline (95%)", "PoV", "valid only: BLEU", "PoV"]
    header += ["epochs", "seconds"]
    first = content["runs"][0]["scores"]["signatures"] if content["runs"] else {}
    text = f"{content['outputs']:,} outputs. Scores: "
    text += ", ".join(f"`{first[name]}`" for name in ("sentence_bleu", "pov") if name in first)
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text + ".")]


def _interval(gain: dict[str, Any]) -> str:
    low, high = gain["interval"]
    return f"[{signed(low)}, {signed(high)}]"


def understanding(path: Path, content: dict[str, Any]) -> list[str]:
    """Understanding, as benchmarks/understanding.py records it."""
    if "summary" not in content:
        return [f"### {path.stem}", _source(path, content)]
    rows, signatures = [], set()
    for task, systems in content["summary"].items():
        for system, found in systems.items():
            for name, summary in found["best"].items():
                signatures.add(summary.get("signature", ""))
                spread = summary.get("deviation")
                values = summary.get("values") or []
                rows.append(
                    [
                        task,
                        system,
                        name,
                        f"{summary['mean']:.2f}" + ("" if spread is None else f" ± {spread:.2f}"),
                        f"{found['last'][name]['mean']:.2f}",
                        str(len(values)),
                        f"{found['learning_rate']:g}",
                    ]
                )
    header = ["task", "system", "score", "best epoch", "last epoch", "seeds", "learning rate"]
    text = f"{content.get('seconds', 0):.0f} seconds in all. Scores: "
    text += ", ".join(f"`{each}`" for each in sorted(signatures) if each) + "."
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


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
    return [*parts, _source(path, content, str(content.get("note", "")).capitalize())]


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
    ("Speed of training", "training-", training),
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
