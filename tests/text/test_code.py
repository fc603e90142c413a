"""Code as tokens and as text: formatted for people, and exactly inverse."""

import lzma
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibranch.data.builtin import code
from multibranch.errors import UserError
from multibranch.text.code import code_to_text, text_to_code

PYTHON = (
    "def f ( a , * rest , b : int = - 2 , ** more ) -> None : NEWLINE INDENT "
    "for x in a [ 1 : 2 ] : NEWLINE INDENT if not x and ( a @ b ) : NEWLINE INDENT "
    "print ( 'one ; two NEWLINE' , end = _STR ) NEWLINE DEDENT DEDENT "
    "return { 'k' : x , ** more } NEWLINE DEDENT"
)
PYTHON_TEXT = """\
def f(a, *rest, b: int = -2, **more) -> None:
    for x in a[1:2]:
        if not x and (a @ b):
            print('one ; two NEWLINE', end=_STR)
    return {'k': x, **more}
"""
JAVA = (
    "public static < T > Map < String , List < T > > f ( @ Nullable final T [ ] xs ) "
    "throws IOException { int a = xs . length > > _NUM ; for ( int i = _NUM ; i < a && a > - i ; "
    "i ++ ) { try { g ( ( int ) xs [ i ] ) ; } catch ( Exception e ) { } } "
    "int [ ] q = { _NUM , _NUM } ; switch ( a ) { case _NUM : return null ; default : break ; } "
    "return h ( x -> { k ( ) ; } , T :: new ) ; }"
)
JAVA_TEXT = """\
public static <T> Map<String, List<T>> f(@Nullable final T[] xs) throws IOException {
    int a = xs.length >> _NUM;
    for (int i = _NUM; i < a && a > -i; i++) {
        try {
            g((int) xs[i]);
        } catch (Exception e) {}
    }
    int[] q = { _NUM, _NUM };
    switch (a) {
    case _NUM:
        return null;
    default:
        break;
    }
    return h(x -> {
        k();
    }, T::new);
}"""


@pytest.mark.parametrize(
    ("tokens", "text", "language"), [(PYTHON, PYTHON_TEXT, "python"), (JAVA, JAVA_TEXT, "java")]
)
def test_tokens_become_formatted_text_and_text_the_same_tokens(
    tokens: str, text: str, language: str
) -> None:
    assert code_to_text(tokens, language) == text
    assert text_to_code(text, language) == tokens


def test_other_peoples_formatting_gives_the_same_tokens() -> None:
    text = """
def f(a,*rest,b:int=-2,
      **more)->None:   # a comment with NEWLINE
  for x in a[1:2]:

\tif not x \\
\t\tand (a@b):
\t\t    print('one ; two NEWLINE',end = _STR)
  # the end
  return {'k':x,**more}
"""
    assert text_to_code(text, "python") == PYTHON
    assert text_to_code(JAVA_TEXT.replace("\n", " // note\n\t"), "java") == JAVA


def test_strings_over_several_lines_become_one_token_on_one_line() -> None:
    text = 'def f():\n    """Says\n      "hello".\n    """\n'
    expected = 'def f ( ) : NEWLINE INDENT """Says "hello". """ NEWLINE DEDENT'
    assert text_to_code(text, "python") == expected


def test_text_without_a_last_line_end_has_no_last_newline_token() -> None:
    tokens = "def f ( ) : NEWLINE INDENT return 1 DEDENT"
    assert code_to_text(tokens, "python") == "def f():\n    return 1"
    assert text_to_code("def f():\n    return 1", "python") == tokens


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("def f ( ) : INDENT return x", "def f(): INDENT return x"),
        ("pass NEWLINE DEDENT x = 1 NEWLINE", "pass\nDEDENT x = 1\n"),
        ("x = [ NEWLINE , INDENT ] NEWLINE", "x = [NEWLINE, INDENT]\n"),
        ("return tokenize . NEWLINE NEWLINE", "return tokenize.NEWLINE\n"),
        ("", ""),
    ],
)
def test_layout_tokens_where_no_layout_can_be_stay_words(tokens: str, text: str) -> None:
    assert code_to_text(tokens, "python") == text


def test_layout_as_dcnl_and_dcsp() -> None:
    tokens = "def f(x): DCNL DCSP if x: DCNL DCSP DCSP return  1 DCNL DCNL DCSP return DCSP"
    text = "def f(x):\n    if x:\n        return  1\n\n    return DCSP"
    assert code_to_text(tokens, "python") == text
    assert text_to_code(text, "python", layout="dcnl") == tokens


def test_javas_literals_become_placeholders_when_asked() -> None:
    text = 'f(1.5e-3f, 0xFF, "a b", \'c\', true, x1, """\n  block\n""");'
    assert text_to_code(text, "java", placeholders=True) == (
        "f ( _NUM , _NUM , _STR , _STR , _BOOL , x1 , _STR ) ;"
    )
    assert text_to_code(text, "java").split()[:6] == ["f", "(", "1.5e-3f", ",", "0xFF", ","]


def test_an_unknown_language_is_named() -> None:
    for convert in (code_to_text, text_to_code):
        with pytest.raises(UserError, match=r"'cobol' is not known here; .* java and python"):
            convert("x", "cobol")


WORDS = [
    "x",
    "_NUM",
    "1",
    ".5",
    "1.",
    "'a b'",
    '"',
    "'",
    "-",
    ">",
    ">=",
    "=",
    "<",
    "(",
    ")",
    "[",
    "]",
]
WORDS += ["{", "}", ".", ",", ";", ":", "&", "&&", "++", "@", "return", "case", "?", "$", "é", "\\"]
LAYOUT = ["NEWLINE", "INDENT", "DEDENT"]


@given(st.lists(st.sampled_from(WORDS + LAYOUT), max_size=30), st.sampled_from(["java", "python"]))
@settings(max_examples=300, deadline=None)
def test_any_tokens_have_a_text_and_text_keeps_every_token(words: list[str], language: str) -> None:
    """What models write need not be code; spacing and lines may never change a token of it."""
    tokens = text_to_code(" ".join(words), language)
    text = code_to_text(tokens, language)
    kept = [word for word in tokens.split() if word not in LAYOUT]
    assert [word for word in text_to_code(text, language).split() if word not in LAYOUT] == kept


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("code-java", "valid"),
        ("code-java", "test"),
        ("code-python", "valid"),
        ("code-python", "test"),
        pytest.param("code-java", "tl-codesum-test", marks=pytest.mark.slow),
        pytest.param("code-java", "train", marks=pytest.mark.slow),
        pytest.param("code-python", "train", marks=pytest.mark.slow),
    ],
)
def test_tokens_and_text_are_inverse_on_every_reference(
    shared_data: Path, folder: str, split: str
) -> None:
    language = folder.removeprefix("code-")
    with lzma.open(shared_data / folder / f"{split}.code.xz", "rt", encoding="utf-8") as file:
        lines = file.read().removesuffix("\n").split("\n")
    assert len(lines) >= 4000
    different = [
        line for line in lines if text_to_code(code_to_text(line, language), language) != line
    ]
    assert different == []


def test_tokens_and_text_are_inverse_on_the_built_in_corpus() -> None:
    lines = [line for _, line in islice(code.pairs(1), 1000)]
    assert len(lines) == 1000
    assert [text_to_code(code_to_text(line, "python"), "python") for line in lines] == lines
