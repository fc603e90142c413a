"""The sections of docs/results.md on scores: a record as its table, and where it comes from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from multibranch.study.bench import Bench
from multibranch.study.markdown import grid, markdown
from multibranch.study.plan import load_study
from multibranch.study.reporting import read_recorded
from multibranch.study.results import signed
from results_source import note_of, source_of


def study(path: Path, content: dict[str, Any]) -> list[str]:
    """A recorded study: its own report, less one level."""
    bench = Bench(study=load_study(content["study"]), output=Path("runs/study"))
    text = markdown(read_recorded(path, bench), level=2)
    drivers = content.get("drivers") or []
    return [text, source_of(path, {"command": "\n".join(drivers)} if drivers else {})]


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
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]


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
    return [f"### {path.stem}", grid(["", *corpora], rows), source_of(path, content, text)]


def code(path: Path, content: dict[str, Any]) -> list[str]:
    """Code generation, as benchmarks/code_generation.py records it."""
    if "runs" not in content:
        return [f"### {path.stem}", source_of(path, content)]
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
    return [
        f"### {path.stem}",
        grid(header, rows),
        source_of(path, said, text + ".", note_of(content)),
    ]


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
        return [f"### {path.stem}", source_of(path, content)]
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
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]


def _understood(found: dict[str, Any] | None, score: str) -> str:
    """One cell: a system's mean score and deviation, or what the paper has for it."""
    if found is None:
        return "–"
    if score == "paper":
        return f"{found['paper']:.1f}" if found.get("paper") else "–"
    each = found["best"][score]
    spread = each.get("deviation")
    return f"{each['mean']:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


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
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]


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
    return [f"### {content['title']}", table, source_of(path, content, text)]


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
    text = f"{content['model']}. {note_of(content)}"
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]


def _setting(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    return str(value) if name == "system" else f"{name} {value}"
