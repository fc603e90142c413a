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
from multibranch.study.bench import Bench
from multibranch.study.markdown import grid, markdown
from multibranch.study.plan import load_study
from multibranch.study.reporting import read_recorded
from multibranch.study.results import signed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"

INTRODUCTION = """# Results

All results of this code on real data. `python benchmarks/results_page.py` generates this page from
the records in [benchmarks/results](../benchmarks/results); a test compares the two. Compare scores
only between runs on the same data. None is comparable with the paper's scores, because the corpora
are not the paper's. [study.md](study.md) says how to run and extend the studies."""


# Records of before the decoder in eight bits stepped through a block with one call. Newer ones say
# how it stepped (`int8_step`), so that one that is made again needs no place here.
ONE_CALL_AN_OPERATION = ("export-demo-cpu", "export-ted-cpu")


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


def _source(path: Path, content: dict[str, Any], *more: str) -> str:
    """Where the figures of a section come from."""
    said = [f"Record: [{path.name}](../benchmarks/results/{path.name})."]
    if where := _machine(content):
        said.append(f"Machine: {where}.")
    text = " ".join([*said, *more])
    return text + (f"\n\n```sh\n{content['command']}\n```" if content.get("command") else "")


def _machine(content: dict[str, Any]) -> str:
    """Where a record was made, and with what; empty where it does not say."""
    told = content["machine"] if isinstance(content.get("machine"), dict) else content
    where = [str(told[name]) for name in ("device", "machine") if told.get(name)]
    if told.get("cores"):
        where.append(f"{told['cores']} cores")
    if told.get("torch"):
        where.append(f"PyTorch {told['torch']}")
    return ", ".join(where)


def _note(content: dict[str, Any]) -> str:
    """What a record says of how it came about, as a sentence."""
    note = str(content.get("note", ""))
    return f"{note[0].upper()}{note[1:].rstrip('.')}." if note else ""


def _int8_step(path: Path, content: dict[str, Any]) -> str:
    """How the decoder in eight bits stepped, as a sentence; empty where nothing is known of it."""
    if said := content.get("int8_step"):
        return f"Our int8 steps with {said}."
    if path.stem not in ONE_CALL_AN_OPERATION:
        return ""
    return (
        "**Taken before our int8 stepped through a whole decoder block with one call.** With that "
        "it is faster, above all with one sentence at a time, and rounds a little differently "
        "([what changed](export.md#measured))."
    )


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


def code_corpora(path: Path, content: dict[str, Any]) -> list[str]:
    """What code corpora allow a model to score, as benchmarks/code_corpora.py records it."""
    corpora = content["corpora"]
    kinds: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("pairs: train, valid, test", lambda c: ", ".join(f"{n:,}" for n in c["pairs"].values())),
        ("test references that parse", lambda c: f"{c['references_that_parse']['test']:.2f}%"),
        ("training references that parse", lambda c: f"{c['references_that_parse']['train']:.2f}%"),
        (
            "references that come back from their text",
            lambda c: "{:,} of {:,}".format(*c["references_that_come_back"]),
        ),
        ("words of the vocabularies", lambda c: "{:,} and {:,}".format(*c["vocabulary"])),
        (
            "test tokens outside the target vocabulary",
            lambda c: f"{c['unknown_target_tokens']:.2f}%",
        ),
        (
            "sentence BLEU of the references with `<unk>` for these",
            lambda c: f"{c['sentence_bleu_with_unknown']:.2f}",
        ),
        ("references without such tokens", lambda c: f"{c['references_without_unknown']:.2f}%"),
        ("longest target with its end", lambda c: str(c["longest_target"])),
        ("training pairs of more than 256 tokens", lambda c: str(c["train_pairs_too_long"])),
        ("distinct test descriptions", lambda c: f"{c['distinct_test_sources']:,}"),
    ]
    rows = [[name, *(tell(corpus) for corpus in corpora.values())] for name, tell in kinds]
    signatures = [sign for corpus in corpora.values() for sign in corpus["signatures"]]
    text = f"Scores: {', '.join(f'`{sign}`' for sign in dict.fromkeys(signatures))}."
    return [f"### {path.stem}", grid(["", *corpora], rows), _source(path, content, text)]


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
                _ended_by(row),
                str(row.get("seconds", "–")),
            ]
        )
    header = ["run", "size", "sentence BLEU", "− baseline (95%)", "paper's", "corpus BLEU", "exact"]
    header += ["PoV", "paper's", "valid only: BLEU", "PoV", "distinct outputs", "`<unk>` best"]
    header += ["epochs", "ended by", "seconds"]
    first = content["runs"][0]["scores"]["signatures"] if content["runs"] else {}
    text = f"{content['outputs']:,} outputs; the paper's figures are for another corpus. Scores: "
    text += ", ".join(f"`{first[name]}`" for name in ("sentence_bleu", "pov") if name in first)
    commands = list(dict.fromkeys(row["command"] for row in content["runs"] if "command" in row))
    said = {**content, "command": "\n".join([*commands, content.get("command", "")]).strip()}
    return [f"### {path.stem}", grid(header, rows), _source(path, said, text + ".", _note(content))]


def _ended_by(row: dict[str, Any]) -> str:
    """What ended a run: its patience, the time that it had, or something else that it was told."""
    if row["run"].endswith("-settled"):
        return "a learning rate of 0"
    if row.get("converged"):
        return "patience"
    return "time" if "passed" in row.get("stopped", "") else row.get("stopped", "–")


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
        f"{', '.join(settings)}. The paper's figures are for RoBERTa-large. "
        f"{content.get('seconds', 0):.0f} seconds in total. Scores: "
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
    header = ["updates run as", "encoder", "time of an update, relative to the plain encoder"]
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
    header = ["update", "fast", "reference", "difference", "deviation between seeds"]
    header.append("deviation of differences")
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


def decoding(path: Path, content: dict[str, Any]) -> list[str]:
    """Speed of decoding, as benchmarks/decoding.py records it."""
    engines = content["engines"]
    slow = next(row["seconds"] for row in engines if row["engine"] == "multibranch, float32")
    rows = [
        [
            row["engine"],
            f"{row['sentences_a_second']:,.1f}",
            f"{row['tokens_a_second']:,.0f}",
            f"{slow / row['seconds']:.2f}",
            "–" if row["times_generate"] is None else f"{row['times_generate']:.2f}",
            row["outputs_as_ours"],
        ]
        for row in engines
    ]
    header = ["engine", "sentences a second", "tokens a second", "times our float32"]
    header += ["times `generate`", "outputs as our float32"]
    model = content["model"]
    text = (
        f"{content['sentences']:,} sentences of {content['corpus']}, {content['source_tokens']:,} "
        f"tokens; MAT {model['branches']}/{model['width']}/{model['hidden']} with "
        f"{content['parameters'] / 1e6:.1f}M parameters, beam {content['beam']}; weights: "
        f"{content['weights']}."
    )
    more = filter(None, (text, _int8_step(path, content)))
    return [f"### {path.stem}", grid(header, rows), _source(path, content, *more)]


def exported(path: Path, content: dict[str, Any]) -> list[str]:
    """What exported and quantised models write, as benchmarks/export.py records it."""
    rows = [
        [
            row["engine"],
            f"{row['bleu']:.2f}",
            signed(row["bleu_above_ours"]),
            f"{100 * row['same_best_share']:.1f}%",
            f"{row['largest_score_difference_where_same']:.1g}",
        ]
        for row in content["engines"]
    ]
    header = ["engine", "BLEU", "− our float32", "same best output", "scores differ by at most"]
    signature = content["engines"][0]["signature"]
    text = f"{content['sentences']:,} sentences, beam {content['beam']}. Score: `{signature}`."
    more = filter(None, (text, _int8_step(path, content)))
    return [f"### {path.stem}", grid(header, rows), _source(path, content, *more)]


def serving(path: Path, content: dict[str, Any]) -> list[str]:
    """The service under load, as benchmarks/serving.py records it."""
    rows = [
        [
            str(row["clients"]),
            f"{row['sentences_a_second']:,.1f}",
            *(f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
            f"{row['answered']:,}",
            f"{row['refused_503']:,}",
            str(sum(row["errors"].values())),
            f"{row['memory_first_mb']:.0f} → {row['memory_last_mb']:.0f}",
        ]
        for row in content["clients"]
    ]
    header = ["clients", "sentences a second", "p50 ms", "p95 ms", "p99 ms", "answered"]
    header += ["answered 503", "errors", "memory, MB"]
    text = f"{content['model']}, engine {content['engine']}, {content['seconds']:g} seconds a row."
    text = text[0].upper() + text[1:]
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def demo_seeds(path: Path, content: dict[str, Any]) -> list[str]:
    """`multibranch demo` with several seeds."""
    rows = [
        [
            str(row["seed"]),
            *(f"{row[name]:.2f}" for name in ("baseline", "continued", "mat")),
            signed(row["difference"]),
            f"{row['seconds']:.0f}",
        ]
        for row in content["seeds"]
    ]
    header = ["seed", "Transformer", "continued", "MAT", "MAT − continued", "seconds"]
    text = f"BLEU; the difference is {content['mean_difference']:.2f} ± {content['deviation']:.2f}"
    text += f" on average. Score: `{content['signature']}`."
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def searched(path: Path, content: dict[str, Any]) -> list[str]:
    """What `study search` found: its best trials, the study's own model, what they started from."""
    own, start, best = content["own"], content["started_from"], content["best"]
    metrics = list(content.get("scores", {}))
    shown = [*best, *([own] if own and own not in best else [])]
    scores = {shown[0]["trial"]: content.get("scores", {})}
    if own:
        scores.setdefault(own["trial"], content.get("own_scores", {}))

    def measured(loss: float | None, found: dict[str, Any]) -> list[str]:
        values = [f"{found[name]['value']:.2f}" if name in found else "–" for name in metrics]
        return ["–" if loss is None else f"{loss:.4f}", *values]

    rows = [
        [
            f"{one['trial']}" + (", the study's own" if one == own else ""),
            *measured(one["validation_loss"], scores.get(one["trial"], {})),
            *(one[name] for name in ("branches", "drop_branch", "drop_ffn", "ffn_branches")),
            one["drop_kind"],
            f"{one['parameters']:,}",
            f"{one['seconds']:.0f}",
        ]
        for one in shown
    ]
    if start:
        found = measured(start["validation_loss"], content.get("started_from_scores", {}))
        size, seconds = f"{start['parameters']:,}", f"{start['seconds']:.0f}"
        rows.append(["what all started from", *found, "1", *"––––", size, seconds])
    header = ["trial", "validation loss", *metrics, "N_a by layer", "ρ by layer", "ρ of the FFN"]
    asked, trials = content["asked"], content["trials"]
    of = f" of the {asked} asked for" if asked > trials else ""
    text = f"{trials} trials{of}, {content['pruned']} of them pruned, "
    text += f"{content['seconds']:.0f} seconds in total, with seed {content['seed']}. "
    text += f"The study's own model is `{content['model']}`. "
    text += f"All started from `{start['key']}`" if start else "All started from scratch"
    text += f", which had {start['updates']:,} updates; trained for" if start else ", for"
    limits = [f"{content[unit]:,} {unit}" for unit in ("updates", "minutes") if content[unit]]
    text += f" at most {' or '.join(limits)} each. " if limits else " as the configuration says. "
    space = "; ".join(f"{name} {value}" for name, value in content["space"].items())
    text += f"[Searched](study.md#search): {space}. {content['claims']}"
    for name, score in content.get("scores", {}).items():
        text += f" {name}, on the test set: {score['signature']}."
    table = grid([*header, "N_f", "dropped", "parameters", "seconds"], rows)
    return [f"### {content['title']}", table, _source(path, content, text)]


def probes(path: Path, content: dict[str, Any]) -> list[str]:
    """Runs that tried other settings of a study, one a row."""
    same = content["runs"][0]["settings"].items()
    common = {k for k, v in same if all(run["settings"].get(k) == v for run in content["runs"])}
    rows = []
    for run in content["runs"]:
        own = {k: v for k, v in run["settings"].items() if k not in common}
        bleu, brevity = run.get("test_bleu"), run.get("brevity_penalty")
        loss = run["validation_loss"]
        rows.append(
            [
                ", ".join(_setting(key, value) for key, value in own.items()),
                str(run["seed"]),
                f"{run['updates']:,}",
                "–" if loss is None else f"{loss:.3f}",
                "–" if bleu is None else f"{bleu:.2f}",
                "–" if brevity is None else f"{brevity:.3f}",
            ]
        )
    header = ["settings", "seed", "updates", "validation loss", "BLEU", "brevity penalty"]
    text = f"{content['model']}. {_note(content)}"
    return [f"### {path.stem}", grid(header, rows), _source(path, content, text)]


def _setting(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    return str(value) if name == "system" else f"{name} {value}"


def _further(paths: list[Path]) -> str:
    rows = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        said = content if isinstance(content, dict) else {}
        where = _machine(said) or "–"
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
