"""What README, docs and configs show is true: commands parse, links lead on, sizes are right.

The docs' Python examples run in test_examples.py.
"""

import re
import shlex
from pathlib import Path

import pytest

from multibranch import cli, configuration
from multibranch.data.recipes import find_recipe
from multibranch.study.architectures import architectures, met, parameters
from multibranch.tasks.understanding_config import UnderstandingConfig
from multibranch.training import Config

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").glob("**/*.yaml"))


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def spans(path: Path) -> list[str]:
    """What stands in single backquotes, outside of blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def lines_of_shell(path: Path) -> list[str]:
    """Shell lines of a page's blocks or of a configuration's comments, continuations joined."""
    if path.suffix == ".yaml":
        comments = re.findall(r"^#   (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        text = "\n".join(comments)
    else:
        text = "".join(blocks(path, "sh"))
    return text.replace("\\\n", " ").splitlines()


def commands(path: Path) -> list[list[str]]:
    """The words after `multibranch` of every such command that a file shows."""
    found = []
    for line in lines_of_shell(path):
        for part in re.split(r"[|<>]", line):
            words = shlex.split(part, comments=True)
            if words[:1] == ["torchrun"] and "multibranch" in words:
                words = words[words.index("multibranch") :]
            if words[:1] == ["multibranch"]:
                found.append(words[1:])
    return found


ALL_COMMANDS = [
    pytest.param(command, id=f"{path.name}: {' '.join(command)}")
    for path in [*PAGES, *CONFIGS]
    for command in commands(path)
]


@pytest.mark.parametrize("words", ALL_COMMANDS)
def test_every_command_is_one_that_the_program_takes(words: list[str]) -> None:
    assert words[0] in cli.VERBS
    args, rest = cli._parser(words[0]).parse_known_args(words)
    assert not rest or args.takes_overrides
    if rest:
        understanding = any(word.startswith("configs/glue-") for word in words)
        configuration.override(UnderstandingConfig() if understanding else Config(), rest)
    if words[0] == "prepare" and args.recipe:
        find_recipe(args.recipe)
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_verb_named_in_the_text_exists(path: Path) -> None:
    named = [span.split() for span in spans(path) if span.startswith("multibranch ")]
    for words in named:
        assert words[1] in cli.VERBS or words[1] == "VERB", " ".join(words)


def test_the_readmes_example_runs_as_it_stands_and_has_ten_lines() -> None:
    example = blocks(README, "python")[0]
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["logits"].shape == (2, 7, 1000)  # type: ignore[attr-defined]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10


def test_the_readmes_verbs_are_the_programs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == cli.VERBS


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_sizes_in_the_docs_are_those_of_the_tables() -> None:
    text = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    written = re.findall(r"^\| \d+ \|.*$", text, re.MULTILINE)
    expected = []
    for one in architectures():
        if one.table not in (1, 4, 6, 7, 8, 11):
            continue
        source = f"{one.source_vocabulary:,} + " if one.source_vocabulary else ""
        cells = [
            str(one.table),
            ", ".join(one.tasks),
            f"{one.branches}/{one.width}/{one.hidden}",
            str(one.ffn_branches),
            str(one.heads),
            f"{one.encoder_layers}+{one.decoder_layers}",
            f"{source}{one.vocabulary:,}",
            f"{parameters(one):,}",
            f"{one.paper_millions}{'' if met(one) else ' ✗'}",
        ]
        expected.append(f"| {' | '.join(cells)} |")
    assert written == expected
