"""The text of code corpora: sentences, literals by kind, Python through its syntax tree."""

import lzma
from pathlib import Path

import pytest

from multibranch.errors import UserError
from multibranch.text.programs import (
    code_detokeniser,
    code_tokeniser,
    normalise_python,
    tokenise_java,
    tokenise_python,
    tokenise_sentence,
)


def test_sentences_are_lower_cased_with_their_signs_apart() -> None:
    assert (
        tokenise_sentence("Gets the x.y (UTF-8), don't!")
        == "gets the x . y ( utf - 8 ) , don ' t !"
    )


def test_java_literals_become_their_kind() -> None:
    text = """int f(char c) { // "note
        return c == '\\n' || c == 'x' ? g("a b \\" c", 0x1F, 1.5f, .5) : h(true, null); }"""
    assert tokenise_java(text) == (
        "int f ( char c ) { return c == _STR || c == _STR ? g ( _STR , _NUM , _NUM , _NUM ) : "
        "h ( _BOOL , null ) ; }"
    )


def test_python_is_written_as_its_tree_spells_it() -> None:
    words = tokenise_python('def f( a ):\n  return (a ["k"]+1) ;\n')
    assert normalise_python(words) == (
        "def f ( a ) : NEWLINE INDENT return a [ 'k' ] + 1 NEWLINE DEDENT"
    )


def test_what_does_not_parse_is_left_alone() -> None:
    assert normalise_python("def f ( ) : NEWLINE INDENT print 'x' NEWLINE DEDENT") is None
    assert normalise_python("x = \x00") is None


def test_unknown_languages_are_refused() -> None:
    for choose in (code_tokeniser, code_detokeniser):
        with pytest.raises(UserError, match="no rules for code in 'cobol'; known are nl, java"):
            choose("cobol")


def test_sentences_come_back_as_people_write_them() -> None:
    assert code_detokeniser("nl")("gets the name ( if any ) , or none .") == (
        "gets the name (if any), or none."
    )


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("code-java/test.nl", "nl"),
        ("code-java/tl-codesum-test.nl", "nl"),
        ("code-python/test.nl", "nl"),
        ("code-java/test.code", "java"),
        ("code-java/tl-codesum-test.code", "java"),
        ("code-python/test.code", "python"),
    ],
)
def test_tokenised_corpora_pass_through_unchanged(
    shared_data: Path, file: str, language: str
) -> None:
    text = lzma.decompress((shared_data / f"{file}.xz").read_bytes()).decode()
    lines = text.removesuffix("\n").split("\n")
    split = code_tokeniser(language)
    assert len(lines) >= 4000
    assert [line for line in lines if split(line) != line] == []


def test_normalising_is_stable_on_real_functions(shared_data: Path) -> None:
    text = lzma.decompress((shared_data / "code-python/test.code.xz").read_bytes()).decode()
    normal = [normalise_python(line) for line in text.split("\n")[:500]]
    assert None not in normal
    assert [normalise_python(line) for line in normal if line] == normal
