"""Generate docs/results.md from the recorded runs in benchmarks/results.

python benchmarks/results_page.py            write docs/results.md
python benchmarks/results_page.py --check    say whether it is up to date
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from claims import claims
from multibranch.study.markdown import grid
from results_scores import (
    code,
    code_corpora,
    demo_seeds,
    probes,
    searched,
    study,
    two_stage,
    understanding,
)
from results_source import machine_of
from results_speed import (
    branching_cost,
    decoding,
    exported,
    loss_curves,
    profile,
    serving,
    training,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"

INTRODUCTION = """# Results

All results of this code on real data. `python benchmarks/results_page.py` generates this page from
the records in [benchmarks/results](../benchmarks/results); a test compares the two. Compare scores
only between runs on the same data. None is comparable with the paper's scores, because the corpora
are not the paper's. [study.md](study.md) says how to run and extend the studies."""


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    files = sorted(folder.glob("*.json"))
    parts = [INTRODUCTION, claims(folder)]
    for heading, start, section in SECTIONS:
        found = [path for path in files if path.name.startswith(start)]
        files = [path for path in files if path not in found]
        if not found:
            continue
        if heading:
            parts.append(f"## {heading}")
        for path in found:
            parts += section(path, json.loads(path.read_text(encoding="utf-8")))
    if files:
        parts += ["## Further records", _further(files)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _further(paths: list[Path]) -> str:
    rows = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        said = content if isinstance(content, dict) else {}
        where = machine_of(said) or "–"
        command = f"`{said['command']}`" if said.get("command") else "–"
        rows.append([f"[{path.name}](../benchmarks/results/{path.name})", where, command])
    return grid(["record", "machine", "command"], rows)


Section = Callable[[Path, dict[str, Any]], list[str]]
# In the order of the page; a record is shown by the first whose beginning its name has.
SECTIONS: list[tuple[str, str, Section]] = [
    # The main study of a corpus, and then what builds on it.
    ("", "study-ted-paper", study),
    ("", "study-ted-de-en", study),
    ("", "study-ted-", study),
    ("", "study-multi30k-small", study),
    ("", "study-multi30k-", study),
    ("", "study-", study),
    ("Beyond the paper's grid", "search-", searched),
    ("TED talks, German → English: two stages", "ted-two-stage", two_stage),
    ("Settings that were tried on the way", "probes-", probes),
    ("Code corpora", "code-corpora", code_corpora),
    ("Code generation", "code-", code),
    ("Understanding", "understanding-", understanding),
    ("What branches cost in fine-tuning", "branching-cost-", branching_cost),
    ("Speed of training", "training-", training),
    ("The same losses with the fast paths and without", "loss-curves-", loss_curves),
    ("Where an update's time goes", "profile-", profile),
    ("Speed of decoding", "decoding-", decoding),
    ("Exported models", "export-", exported),
    ("The service under load", "serving-", serving),
    ("The demo", "demo-seeds-", demo_seeds),
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
