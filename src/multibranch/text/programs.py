"""The text of code corpora: sentences about code, Java and Python, as words separated by blanks.

A sentence is lower-cased and its signs stand apart. Java's literals become ``_STR``, ``_NUM`` and
``_BOOL``. Python keeps its literals; ``normalise_python`` writes it the way its syntax tree spells
it, so that the same function is the same words whoever wrote it. Text that has this form already
passes through unchanged.
"""

import ast
import re
import warnings
from collections.abc import Callable

from multibranch.errors import UserError
from multibranch.text.code import code_to_text, text_to_code

_SENTENCE = re.compile(r"\w+|[^\w\s]")


def tokenise_sentence(text: str) -> str:
    """A sentence about code: "Gets x.y" → "gets x . y"."""
    return " ".join(_SENTENCE.findall(text.lower()))


def tokenise_java(text: str) -> str:
    """Java as words, its literals by their kind."""
    return text_to_code(text, "java", placeholders=True)


def tokenise_python(text: str) -> str:
    """Python as words, its layout spelt out."""
    return text_to_code(text, "python")


def normalise_python(words: str) -> str | None:
    """Python as its syntax tree spells it, as words; None where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the escapes in somebody else's strings
            text = ast.unparse(ast.parse(code_to_text(words, "python")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text_to_code(text + "\n", "python")


def code_tokeniser(language: str) -> Callable[[str], str]:
    """The function that turns text in ``language`` (nl, java, python) into words."""
    return _named(_TOKENISERS, language)


def code_detokeniser(language: str) -> Callable[[str], str]:
    """The function that turns words back into text in ``language``."""
    return _named(_DETOKENISERS, language)


def _named(table: dict[str, Callable[[str], str]], language: str) -> Callable[[str], str]:
    if language not in table:
        raise UserError(f"no rules for code in '{language}'; known are {', '.join(table)}.")
    return table[language]


def _sentence(words: str) -> str:
    from multibranch.text.detokenise import MosesDetokeniser

    return MosesDetokeniser("en")(words)


_TOKENISERS: dict[str, Callable[[str], str]] = {
    "nl": tokenise_sentence,
    "java": tokenise_java,
    "python": tokenise_python,
}
_DETOKENISERS: dict[str, Callable[[str], str]] = {
    "nl": _sentence,
    "java": lambda words: code_to_text(words, "java"),
    "python": lambda words: code_to_text(words, "python"),
}
