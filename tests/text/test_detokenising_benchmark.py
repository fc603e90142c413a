"""benchmarks/detokenising.py: which lines come back from their ids, and docs/data.md from it."""

import json
import lzma
from pathlib import Path

import detokenising

ROOT = Path(__file__).resolve().parents[2]


def test_lines_that_no_rule_can_know_do_not_come_back(tmp_path):
    folder = tmp_path / "mine-de-en"
    folder.mkdir()
    german = ["Guten Tag, Herr Maier!", "Es sind 5 % .", "Es sind  5 %."]
    english = ["Good day, Mr. Maier!", "It is 5%.", "It is 5 %."]
    for language, lines in (("de", german), ("en", english)):
        with lzma.open(folder / f"train.{language}.xz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        (folder / f"test.{language}").write_text("Ja.\n", encoding="utf-8")
    found = detokenising.counts(folder, 20)
    assert found["files"] == ["test", "train"]
    assert found["percent_signs"] == {"de": "apart", "en": "joined"}
    assert found["lines"] == {"de": 4, "en": 4}
    assert found["came_back"] == {"de": 3, "en": 3}  # not the blank before a full stop, nor "5 %"
    assert found["share"] == {"de": 75.0, "en": 75.0}


def test_the_documentation_has_the_shares_of_the_record():
    record = json.loads((ROOT / "benchmarks/results/detokenising.json").read_text())
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert len(record["corpora"]) == 3
    for corpus in record["corpora"].values():
        lines, share = corpus["lines"]["de"], corpus["share"]
        assert f"({lines:,} lines) | {share['de']:.2f}% | {share['en']:.2f}% |" in page
