"""From a storage, a folder of recorded trials or a recorded file to a report."""

import gzip
import json
import re
import shlex
import time
import zlib
from pathlib import Path
from typing import Any

from multibranch import __version__, configuration
from multibranch.data import PreparedData
from multibranch.directory import read_json
from multibranch.disk import check_file, replaced_file, write_json
from multibranch.errors import UserError, counted
from multibranch.study.bench import Bench
from multibranch.study.comparing import compared
from multibranch.study.experiment import Experiment
from multibranch.study.layout import ordered, row_of
from multibranch.study.results import Results
from multibranch.study.scoring import scored
from multibranch.study.storage import Queue, is_there, open_storage
from multibranch.study.telling import TELL_EVERY, Tell
from multibranch.study.trial_folder import (
    HYPOTHESES,
    RECORD,
    Busy,
    claimed,
    read_record,
    write_lines,
)

POINTS = 40  # of a learning curve, in a recorded file

# The numbers of a record beside its scores. Those of weights that fell apart may be infinite.
_COUNTED = ("parameters", "updates", "wall_seconds", "brevity_penalty")
_OF_WEIGHTS = ("validation_plain", "averaged_plain", "mean_similarity")
_BEYOND = 1e15  # what no score, count or time reaches


def write_report(
    bench: Bench,
    *,
    url: str,
    source: str | None = None,
    html: str | None = None,
    markdown: str | None = None,
    record: str | None = None,
    tell: Tell,
) -> dict[str, Any]:
    """Write the page, the Markdown file and, where asked for, the record; the files and cells."""
    page_path = bench.output / f"{bench.study.name}.html" if html is None else Path(html)
    check_file(page_path, "--output" if html is None else "--html")
    text_path = page_path.with_suffix(".md") if markdown is None else Path(markdown)
    check_file(text_path, "--markdown")
    places = [page_path, text_path]
    if record is not None:
        check_file(Path(record), "--record")
        places.append(Path(record))
    if len({place.resolve() for place in places}) < len(places):
        raise UserError(
            "page, Markdown and record must be different files: choose another --html, --markdown "
            "or --record"
        )
    nothing = UserError(
        f"there is no finished trial of {bench.study.name}: start some with `{bench.command()}`"
    )
    if not source and not is_there(url):
        raise nothing
    results = read_recorded(source, bench) if source else from_storage(bench, url, tell)
    if not results.cells:
        raise nothing
    from multibranch.study import markdown as text
    from multibranch.study.page import page

    files = []
    for path, content in ((page_path, page(results)), (text_path, text.markdown(results))):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as file:
            file.write(content.encode())
        files.append(str(path))
    if record is not None:
        write_recorded(Path(record), results)
        files.append(record)
    return {"files": files, "cells": [row_of(cell, bench.study) for cell in ordered(results)]}


# -- Where results come from --------------------------------------------------------------------


def from_storage(bench: Bench, url: str, tell: Tell) -> Results:
    """Everything that is done, with the comparisons that the translations at hand allow."""
    queue = Queue(open_storage(url), bench.study.name, [])
    records = list(queue.records().values())
    failed = queue.errors()
    for key, error in failed.items():
        tell(f"{key} failed: {error}")
    outdated = [record for record in records if bench.is_outdated(record)]
    if outdated:
        tell(
            f"{counted(len(outdated), 'trial')} ran with other settings or data than the study has "
            f"now: `{bench.command()}` runs them again"
        )
    return Results(bench.study, records, compared(bench, records, tell))


# -- Recorded files -----------------------------------------------------------------------------


def write_recorded(path: Path, results: Results) -> None:
    """The study as one JSON file without any sentence of a corpus."""
    drivers = [record["driver"] for record in results.records if record.get("driver")]
    content = {
        "study": results.study.name,
        "title": results.study.title,
        "version": __version__,
        "metric": results.study.metric,
        "signature": results.signature,
        "drivers": list(dict.fromkeys(drivers)),
        "comparison": _one_signature(results.comparisons),
        "comparisons": {
            pair: {name: value for name, value in found.items() if name != "signature"}
            for pair, found in results.comparisons.items()
        },
        "trials": [_slim(record) for record in results.records],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # One trial a line, so that a change of one is a change of one line.
    trials = ",\n".join(json.dumps(trial, ensure_ascii=False) for trial in content.pop("trials"))
    head = json.dumps(content, indent=1, ensure_ascii=False)
    text = head[:-2] + ',\n "trials": [\n' + trials + "\n ]\n}\n"
    with replaced_file(path) as file:
        file.write(text.encode())


def _one_signature(comparisons: dict[str, Any]) -> str:
    """How differences were tested: said once, not for each."""
    signatures = {found["signature"] for found in comparisons.values() if "signature" in found}
    return "; ".join(sorted(f"paired bootstrap|{signature}" for signature in signatures))


def _slim(record: dict[str, Any]) -> dict[str, Any]:
    record = {name: value for name, value in record.items() if name != "similarity"}
    curve = record.get("curve") or []
    step = -(-len(curve) // POINTS) if curve else 1
    # The last point stays, whatever the step.
    return {**record, "curve": curve[::-1][::step][::-1]}


def read_recorded(path: str | Path, bench: Bench) -> Results:
    """The results in a recorded file."""
    content = read_json(Path(path))
    try:
        if not isinstance(content["trials"], list):
            raise ValueError("its trials are no list")
        records = [checked_record(record) for record in content["trials"]]
        if len({record["key"] for record in records}) < len(records):
            raise ValueError("it has a trial twice")
        if content["study"] != bench.study.name:
            raise UserError(f"{path} records the study {content['study']}, not {bench.study.name}")
        for pair, found in content["comparisons"].items():
            is_number = isinstance(found["difference"], int | float)
            if not is_number or not isinstance(found["significant"], bool):
                raise ValueError(f"it does not say how {pair} came out")
        return Results(bench.study, records, content["comparisons"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no recorded study: {_said(error)}") from None


def _said(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def checked_record(record: Any) -> dict[str, Any]:
    """A record that came from elsewhere; what it lacks is a KeyError, what is wrong a ValueError.

    A trial's folder is named by the key and the fingerprint, so that these must be what they seem.
    """
    if not isinstance(record, dict):
        raise ValueError("a trial is no object")
    where = str(record["key"])
    try:
        experiment = configuration.from_dict(
            Experiment, record["experiment"], where=where, prefix="experiment."
        )
    except UserError as error:
        raise ValueError(str(error)) from None
    if (record["key"], record["cell"]) != (experiment.key, experiment.cell):
        raise ValueError(f"the key {record['key']} is not its experiment's, {experiment.key}")
    if not re.fullmatch("[0-9a-f]{6}", record["fingerprint"]):
        raise ValueError(f"{experiment.key} has the fingerprint {record['fingerprint']!r}")
    for name, score in (record.get("scores") or {}).items():
        if not isinstance(score["signature"], str):
            raise ValueError(f"{experiment.key} has the signature {score['signature']!r} of {name}")
    for name in ("command", "device"):
        if not isinstance(record[name], str):
            raise ValueError(f"{experiment.key} has the {name} {record[name]!r}")
    shlex.split(record["command"])
    for update, loss, plain in record["curve"]:
        # Losses that are no numbers, as of a training that fell apart at its end, are null.
        losses = all(isinstance(value, int | float | None) for value in (loss, plain))
        if not losses or not isinstance(update, int | float):
            raise ValueError(f"{experiment.key} has a learning curve without numbers")
    _check_numbers(record)
    return record


def _check_numbers(record: dict[str, Any]) -> None:
    """Refuse what a report could not average, or would into a score that is no number."""
    scores, valid = record.get("scores") or {}, record.get("valid_bleu") or {}
    found = {f"score {name}": score["value"] for name, score in scores.items()}
    found |= {f"valid_bleu {penalty}": value for penalty, value in valid.items()}
    optional = (*_COUNTED, *_OF_WEIGHTS, "valid_score")
    found |= {name: record[name] for name in optional if record.get(name) is not None}
    for name, value in found.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (name in _OF_WEIGHTS or abs(value) < _BEYOND):
            raise ValueError(f"{record['key']} has the {name} {value!r}")


# -- Trials that were run elsewhere -------------------------------------------------------------


def import_trials(bench: Bench, folder: str | Path, *, url: str, tell: Tell) -> tuple[int, int]:
    """Score recorded trials and put them in the storage; how many were new, and how many not."""
    place = Path(folder)
    records, texts = read_trials(place)
    driver = _driver(place)
    names = {corpus.name for corpus in bench.study.corpora}
    cells = {experiment.cell for experiment in bench.study.experiments(seeds=1)}
    queue = Queue(open_storage(url), bench.study.name, [])
    done = queue.records()
    found = [r for r in records if r["experiment"]["corpus"] in names and r["cell"] in cells]
    taken, told = 0, time.monotonic()
    for number, record in enumerate(found):
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            tell(f"{number} of {counted(len(found), 'trial')} taken in")
        experiment, data = Experiment(**record["experiment"]), None
        lines = texts.get(record["key"], [])
        if record.get("task") != "understanding":
            data = bench.open(experiment)
            if len(lines) != len(data.split("test")):
                raise UserError(
                    f"{folder} is damaged: {record['key']} has {counted(len(lines), 'translation')}"
                    f" of the test set's {counted(len(data.split('test')), 'sentence')}"
                )
        own, stored = {**record, "driver": driver}, done.get(record["key"])
        target = bench.output / "trials" / f"{record['key']}-{record['fingerprint']}"
        try:
            with claimed(target):  # whoever is at it would put its own translations there
                kept = _take_in(bench, own, lines, data, target, stored=stored, tell=tell)
        except Busy:
            raise UserError(
                f"{record['key']}: another process runs this trial in {target}: stop it, or wait "
                "for its end, and import again"
            ) from None
        if kept is not None and queue.add_done(kept, experiment.group):
            taken += 1
    if not found:
        raise UserError(f"{folder} holds no trial of the study {bench.study.name}")
    tell(f"scored with {bench.study.metric}")
    return taken, len(found) - taken


def _driver(place: Path) -> str | None:
    """The command that recorded the trials, where it left word."""
    summary = place / "summary.json"
    driver = read_json(summary).get("command") if summary.is_file() else None
    if not isinstance(driver, str | None):
        raise UserError(f"{summary} has the command {driver!r}, which is no text")
    return driver


def _take_in(
    bench: Bench,
    record: dict[str, Any],
    lines: list[str],
    data: PreparedData | None,
    target: Path,
    *,
    stored: dict[str, Any] | None,
    tell: Tell,
) -> dict[str, Any] | None:
    """Fill a trial's folder; its record as the storage is to have it, None where it is known.

    lines: its translations.
    data: what they are scored by; None where there are none.
    target: the folder.
    stored: the record of its key that the storage has.
    """
    is_known = stored is not None and stored.get("fingerprint") == record["fingerprint"]
    # What is there was scored and tested by its own translations, in this storage or in that of
    # another study with this output folder: those of another run do not take their place.
    has_lines = (target / HYPOTHESES).is_file()
    there = stored if is_known else read_record(target) if has_lines or data is None else None
    of_another_run = there is not None and there.get("finished") != record.get("finished")
    if data is not None and not of_another_run and not (is_known and has_lines):
        write_lines(target / HYPOTHESES, lines)
    if is_known:
        return None
    if there is not None and of_another_run:
        tell(f"{record['key']}: {target} holds another run of it, which is taken in its place")
        record = {"driver": None, **there}
    record = scored({**record, "study": bench.study.name}, target, data)
    record["command"] = bench.command(Experiment(**record["experiment"]))
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / RECORD, record)
    return record


def read_trials(place: Path) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """The records of trials.jsonl and the translations of hypotheses.jsonl.gz."""
    try:
        lines = (place / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        records: dict[str, dict[str, Any]] = {}
        for record in (checked_record(json.loads(line)) for line in lines):
            if records.setdefault(record["key"], record) != record:
                raise ValueError(f"it has {record['key']} twice, and not alike")
        texts: dict[str, list[str]] = {}
        with gzip.open(place / "hypotheses.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                one = json.loads(line)
                if not all(isinstance(words, str) for words in one["lines"]):
                    raise ValueError(f"{one['key']} has translations that are no text")
                if texts.setdefault(one["key"], one["lines"]) != one["lines"]:
                    raise ValueError(f"{one['key']} has translations twice, and not alike")
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        raise UserError(f"{place} holds no recorded trials: {said}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise UserError(f"{place} holds no recorded trials: {_said(error)}") from None
    return list(records.values()), texts
