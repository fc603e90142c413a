"""Uniform punctuation: equal to sacremoses' port where that follows the original script."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacremoses import MosesPunctNormalizer

from multibranch.text.normalise import PunctuationNormaliser


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("en", "He said “yes”, didn’t he…", 'He said "yes," didn\'t he...'),
        ("de", "Er sagte „ja“ – und ging , 5 % :", 'Er sagte "ja" - und ging , 5%:'),
        ("en", "(  a )b", " (a) b"),
        ("fr", "«\u00a0oui\u00a0» 10\u00a0000", '"oui" 10,000'),
        ("en", "10\u00a0000", "10.000"),
        ("de", "soft\u00adhyphen\u200band\x85more", "soft hyphen and more"),
    ],
)
def test_punctuation_is_made_uniform(language: str, line: str, expected: str) -> None:
    assert PunctuationNormaliser(language)(line) == expected


@given(
    st.text("ab 5()[]%:;,.'\"`´„“”‘’‚–—…«»!?\u00a0º", max_size=30), st.sampled_from(["en", "de"])
)
@settings(max_examples=400, deadline=None)
def test_any_line_is_normalised_as_sacremoses_does(line: str, language: str) -> None:
    reference = MosesPunctNormalizer(language, perl_parity=True).normalize(line)
    assert PunctuationNormaliser(language)(line).strip() == reference.strip()
