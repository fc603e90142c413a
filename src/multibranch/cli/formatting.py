"""How the help of a verb is laid out, whatever the terminal's width."""

import argparse
import itertools
import textwrap

_WIDEST = 100  # columns of prose that are still read with ease


class HelpFormatter(argparse.HelpFormatter):
    """Fills the terminal's width with prose; indented lines, the examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[str] = []
        for kept, lines in itertools.groupby(text.strip().splitlines(), _is_kept):
            words = "\n".join(lines)
            blocks.append(textwrap.indent(words, indent) if kept else _filled(words, width, indent))
        return "\n".join(blocks)


def _is_kept(line: str) -> bool:
    """Whether a line is an example's, or the blank one between paragraphs."""
    return not line or line.startswith(" ")


def _filled(words: str, width: int, indent: str) -> str:
    # Neither an option nor a compound of the paper, such as drop-branch, is broken at its hyphen.
    return textwrap.fill(
        " ".join(words.split()),
        min(width, _WIDEST),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
