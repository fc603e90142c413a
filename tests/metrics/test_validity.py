"""Whether code parses: hand-written cases of both languages, and every reference."""

import lzma
from pathlib import Path

import pytest

from multibranch.errors import UserError
from multibranch.metrics import parses, pov

JAVA = [
    "public int f ( ) { return _NUM ; }",
    "Foo ( String s ) { this . s = s ; }",
    "static < T > List < List < T > > f ( T ... xs ) { return g ( xs , a > > 2 , b > > > 3 ) ; }",
    "@ Override public String toString ( ) { return _STR + _NUM + ( _BOOL ? _STR : null ) ; }",
    "void f ( ) { switch ( x ) { case _NUM : g ( ) ; default : h ( ) ; } }",
    "void f ( ) { try ( R r = g ( ) ) { r . h ( x -> { k ( ) ; } , A :: new ) ; } finally { } }",
    "abstract void f ( ) ;",
    "public int f() {\n  return 1; // text, with a comment\n}",
    "/** Its comment. */\npublic int f() { return 1; } // and another",
]
BROKEN_JAVA = [
    "",
    "public int f ( ) { return _NUM }",
    "public int f ( ) { return _NUM ; ",
    "public int f ( ) { return _NUM ; } }",
    "public int f ( { return _NUM ; }",
    "public int f ( ) { if x { g ( ) ; } }",
    "public int f ( ) { return + ; }",
    "int x ;",
    "// a comment\n// and no method",
    "} class B { void f ( ) { }",
    "return _NUM ;",
    "def f ( ) : return 1",
]
PYTHON = [
    "def f ( x ) : NEWLINE INDENT return x + _NUM NEWLINE DEDENT",
    "def f ( ) : return _STR , _BOOL NEWLINE",
    "async def f ( ) : NEWLINE INDENT async with a : NEWLINE INDENT await b NEWLINE DEDENT DEDENT",
    "def f ( ) : NEWLINE INDENT x = '\\d' NEWLINE return f'{x!r:>{10}}' DEDENT",
    "def f(x): DCNL DCSP if x: DCNL DCSP DCSP return 1",
    "def f(x):\n\treturn x\n",
]
PYTHON_2 = [
    "def f ( x ) : NEWLINE INDENT print _STR , x NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT print >> out , x , NEWLINE DEDENT",
    "try : NEWLINE INDENT g ( ) NEWLINE DEDENT except E , e : NEWLINE INDENT pass NEWLINE DEDENT",
    "def f ( ) : NEWLINE INDENT raise E , _STR NEWLINE DEDENT",
    "def f ( ) : NEWLINE INDENT exec code in scope NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT return x <> 0777 + 1L NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT return 0777 NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT return 10L NEWLINE DEDENT",
    "def f ( ( a , b ) , c ) : NEWLINE INDENT return ur'x' NEWLINE DEDENT",
    "def f ( ) : NEWLINE INDENT return lambda ( a , b ) : a NEWLINE DEDENT",
    "def f ( ) : NEWLINE INDENT return ` x ` NEWLINE DEDENT",
]
BROKEN_PYTHON = [
    "",
    "def f ( x : NEWLINE INDENT return x NEWLINE DEDENT",
    "def f ( x ) NEWLINE INDENT return x NEWLINE DEDENT",
    "def f ( x ) : NEWLINE return x NEWLINE",
    "def f ( x ) : INDENT return x DEDENT",
    "def f ( x ) : NEWLINE INDENT return x NEWLINE DEDENT DEDENT y = 1 NEWLINE",
    "def f ( x ) : NEWLINE INDENT x = = 1 NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT x = 1 NEWLINE INDENT y = 2 NEWLINE DEDENT DEDENT",
    "def f ( x ) : NEWLINE INDENT g ( , ) NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT return 'open NEWLINE DEDENT",
    # Python 2, and still broken.
    "def f ( x ) : NEWLINE print x NEWLINE",
    "def f ( x ) : NEWLINE INDENT print x y NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT if x : NEWLINE print x NEWLINE DEDENT",
    "def f ( x ) : NEWLINE INDENT return 08 NEWLINE DEDENT",
    "public int f ( ) { return 1 ; }",
]


@pytest.mark.parametrize("code", JAVA)
def test_valid_java(code: str) -> None:
    assert parses(code, "java")


@pytest.mark.parametrize("code", BROKEN_JAVA)
def test_broken_java(code: str) -> None:
    assert not parses(code, "java")


@pytest.mark.parametrize("code", PYTHON + PYTHON_2)
def test_valid_python_of_both_versions(code: str) -> None:
    assert parses(code, "python")


@pytest.mark.parametrize("code", BROKEN_PYTHON)
def test_broken_python(code: str) -> None:
    assert not parses(code, "python")


def test_the_share_that_parses_with_its_parsers() -> None:
    score = pov(JAVA[:3] + BROKEN_JAVA[:1], "java")
    assert score.value == 75.0
    assert score.signature.startswith("pov|java:tree-sitter-java-0.")
    assert pov(PYTHON, "python").signature.startswith("pov|python:ast-3.")


def test_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="'cobol'"):
        parses("x", "cobol")
    with pytest.raises(UserError, match="'cobol'"):
        parses("x\ny", "cobol")
    with pytest.raises(UserError, match="no code"):
        pov([], "java")


@pytest.mark.parametrize(
    ("folder", "split", "least"),
    [
        ("code-java", "valid", 99.8),
        ("code-java", "test", 99.8),
        ("code-python", "valid", 100.0),
        ("code-python", "test", 100.0),
        pytest.param("code-java", "train", 99.8, marks=pytest.mark.slow),
        pytest.param("code-java", "tl-codesum-test", 99.9, marks=pytest.mark.slow),
        pytest.param("code-python", "train", 100.0, marks=pytest.mark.slow),
    ],
)
def test_nearly_every_reference_parses(
    shared_data: Path, folder: str, split: str, least: float
) -> None:
    with lzma.open(shared_data / folder / f"{split}.code.xz", "rt", encoding="utf-8") as file:
        lines = file.read().removesuffix("\n").split("\n")
    score = pov(lines, folder.removeprefix("code-"))
    assert score.value >= least


def test_the_check_notices_a_lost_token(shared_data: Path) -> None:
    """Of 400 references without one of their brackets, none parses."""
    for language in ("java", "python"):
        path = shared_data / f"code-{language}" / "test.code.xz"
        with lzma.open(path, "rt", encoding="utf-8") as file:
            lines = [next(file).rstrip("\n") for _ in range(200)]
        broken = [line.replace(" )", "", 1) for line in lines]
        assert pov(broken, language).value == 0
