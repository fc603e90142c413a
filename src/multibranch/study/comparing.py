"""Whether differences between a study's trials are more than chance: paired bootstraps, kept."""

from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.directory import read_json
from multibranch.disk import write_json
from multibranch.errors import UserError, counted
from multibranch.metrics.bootstrap import Bootstrap, Resampled, signature
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.results import references
from multibranch.study.telling import Tell
from multibranch.study.trial_folder import HYPOTHESES, read_lines

SAMPLES = 1000


class Comparisons:
    """Paired bootstraps between trials' translations, each computed once."""

    def __init__(
        self,
        references: dict[str, list[str]],
        known: dict[str, Any] | None = None,
        *,
        lowercase: Container[str] = (),
    ):
        """references: the tokenised ones of every corpus, by its name; lowercase: whose are so."""
        self.found: dict[str, Any] = dict(known or {})
        self._bootstraps = {
            corpus: Bootstrap(lines, samples=SAMPLES, lowercase=corpus in lowercase)
            for corpus, lines in references.items()
            if lines
        }
        self._resampled: dict[str, Resampled] = {}

    def compare(self, system: str, baseline: str, corpus: str, files: dict[str, Path]) -> Any:
        """The difference of `system` to `baseline`, both keys; None where a file is missing."""
        name = f"{system} > {baseline}"
        if name in self.found:
            return self.found[name]
        if corpus not in self._bootstraps or not all(
            key in files and files[key].is_file() for key in (system, baseline)
        ):
            return None
        bootstrap = self._bootstraps[corpus]
        first, second = (self._of(key, corpus, files[key]) for key in (baseline, system))
        got = bootstrap.compare(first, second)
        self.found[name] = {
            "difference": round(got["difference"], 4),
            "p_value": round(got["p_value"], 5),
            "significant": got["significant"],
            "signature": bootstrap.signature,
        }
        return self.found[name]

    def scored_alike(self, record: dict[str, Any], path: Path) -> bool:
        """Whether a trial was scored by these references, and not by a corpus of before."""
        corpus, lines = record["experiment"]["corpus"], read_lines(path)
        if len(lines) != len(self._bootstraps[corpus].references):
            return False
        score = (record.get("scores") or {}).get("multi_bleu")
        if score is None:
            return True
        return abs(self._of(record["key"], corpus, path).score - float(score["value"])) < 0.01

    def _of(self, key: str, corpus: str, path: Path) -> Resampled:
        if key not in self._resampled:
            self._resampled[key] = self._bootstraps[corpus].resample(read_lines(path))
        return self._resampled[key]


def compared(bench: Bench, records: list[dict[str, Any]], tell: Tell) -> dict[str, Any]:
    """Paired bootstraps of every trial against its references; computed once, then kept."""
    cache, known = bench.output / f"significance-{bench.study.name}.json", {}
    prints = {r["key"]: r["fingerprint"] for r in records}
    # What is missing or damaged is computed again.
    with suppress(UserError, KeyError, TypeError, AttributeError):
        known = _kept(read_json(cache), prints)
    files = {
        r["key"]: bench.output / "trials" / f"{r['key']}-{r['fingerprint']}" / HYPOTHESES
        for r in records
    }
    pairs = [
        (record, other.key)
        for record in records
        for other in references(Experiment(**record["experiment"])).values()
        if other.key in files
        # An understanding trial has no translations, one that was run elsewhere may have lost them.
        and all(files[key].is_file() for key in (record["key"], other.key))
    ]
    corpora, missing = _corpora(bench, [record for record, _ in pairs])
    lowercase = {name for name, data in corpora.items() if data.text.settings.lowercase}
    signed = {name: signature(samples=SAMPLES, lowercase=name in lowercase) for name in corpora}
    wanted = []
    for record, other in pairs:
        name, corpus = f"{record['key']} > {other}", record["experiment"]["corpus"]
        before = known.get(name)
        if before is None or before.get("signature") != signed.get(corpus, before.get("signature")):
            known.pop(name, None)
            wanted.append((corpus, record["key"], other))
    for corpus in dict.fromkeys(corpus for corpus, *_ in wanted if corpus in missing):
        tell(f"no test for significance on {corpus}: {missing[corpus]}")
    named = {corpus for corpus, *_ in wanted}
    words = {name: _references(data) for name, data in corpora.items() if name in named}
    wanted = [each for each in wanted if words.get(each[0])]
    if not wanted:
        return known
    comparisons = Comparisons(words, known, lowercase=lowercase)
    tell(f"testing for significance: {len(wanted)} of the differences")
    by_key, asked = {r["key"]: r for r in records}, {key for _, *pair in wanted for key in pair}
    alike = {key for key in asked if comparisons.scored_alike(by_key[key], files[key])}
    if alike < asked:
        tell(
            f"not tested: differences of {counted(len(asked - alike), 'trial')} scored by another "
            "test set than the corpus has now"
        )
    for corpus, key, other in wanted:
        if {key, other} <= alike:
            comparisons.compare(key, other, corpus, files)
    write_json(cache, {"of": prints, "found": comparisons.found})
    return comparisons.found


def _kept(content: dict[str, Any], prints: dict[str, str]) -> dict[str, Any]:
    """The comparisons kept that are still of the trials there are, by their fingerprints."""
    before = content["of"]  # what was compared may have been run again, with other settings
    known = {
        name: found
        for name, found in content["found"].items()
        if all(before.get(key) == prints.get(key) for key in name.split(" > "))
    }
    for found in known.values():
        if not isinstance(found["significant"], bool) or not isinstance(found["signature"], str):
            raise TypeError
        for number in (found["difference"], found["p_value"]):
            if not isinstance(number, int | float):
                raise TypeError
    return known


def _corpora(
    bench: Bench, records: list[dict[str, Any]]
) -> tuple[dict[str, PreparedData], dict[str, UserError]]:
    """The corpora of some trials that are at hand, and why the others are not."""
    there: dict[str, PreparedData] = {}
    missing: dict[str, UserError] = {}
    known = [corpus.name for corpus in bench.study.corpora]
    for record in records:
        experiment = Experiment(**record["experiment"])
        name = experiment.corpus
        if name not in there and name not in missing:
            try:
                if name not in known:
                    raise UserError(f"{bench.study.path} has no such corpus any more")
                there[name] = bench.open(experiment)
            except UserError as error:
                missing[name] = error
    return there, missing


def _references(data: PreparedData) -> list[str]:
    """The tokenised references of a corpus."""
    return [data.text.tokenise(line, "target") for line in data.lines("test", "target")]
