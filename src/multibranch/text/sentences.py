"""A document as paragraphs, and a paragraph as sentences."""

import re

from multibranch.text.moses import abbreviations

_ENDS = ".!?…؟।"
_WIDE_ENDS = "。！？"  # after these no blank stands
_CLOSERS = "\"'”“’‘»«)]}›‹」』"  # German closes with “, Danish with «
# An end, what closes behind it, and what follows; after the wide ones nothing need follow. Each run
# of ends is tried once, from its first, and never in part: a page of periods takes no time.
_BOUNDARY = re.compile(
    rf"(?<![{_ENDS}])[{_ENDS}]++[{re.escape(_CLOSERS)}]*+(?=\s)"
    rf"|[{_WIDE_ENDS}]++[{re.escape(_CLOSERS)}]*+"
)
_OPENERS = "\"'“„‘‚«‹([{¿¡-–—*•"
_CLAUSE = re.compile(r"[;:,،、，；：–—]\s|[、，；：](?=.)")
_BLANK = re.compile(r"\s+")


class SentenceSplitter:
    """Cuts text into sentences after ". ! ?" and their like; nothing but blanks is lost.

    A period does not end a sentence behind an abbreviation of the language (Moses' lists), a single
    letter or a number, nor before a lower-case letter.
    """

    def __init__(self, language: str) -> None:
        always, before_numbers = abbreviations(language)
        self._abbreviations = always | before_numbers

    def __call__(self, paragraph: str) -> list[str]:
        """The sentences of one paragraph, in order."""
        sentences, start = [], 0
        for match in _BOUNDARY.finditer(paragraph):
            if self._ends(paragraph, match):
                sentences.append(paragraph[start : match.end()].strip())
                start = match.end()
        sentences.append(paragraph[start:].strip())
        return [sentence for sentence in sentences if sentence]

    def _ends(self, text: str, match: re.Match[str]) -> bool:
        if match[0][0] in _WIDE_ENDS:
            return True
        # A window is enough, and keeps a text of a million blanks or one word from taking long.
        following = text[match.end() : match.end() + 64].lstrip().lstrip(_OPENERS)[:1]
        if following.islower():
            return False
        if match[0] != ".":
            return True
        before = text[max(0, match.start() - 64) : match.start()].split()
        word = before[-1].lstrip(_OPENERS) if before else ""
        if word.isdigit():
            return len(word) > 3  # "am 3. Mai", but a year ends a sentence
        return not (word in self._abbreviations or (len(word) == 1 and word.isalpha()))


def paragraphs(document: str) -> list[str]:
    """The lines of a document that are not blank."""
    return [
        line.strip()
        for line in re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]", document)
        if line.strip()
    ]


def halves(sentence: str) -> tuple[str, str] | None:
    """A sentence cut in two near its middle: behind a clause, else between words; None for a word.

    What is in the middle half of the sentence counts as near.
    """
    sentence = sentence.strip()
    middle, reach = len(sentence) // 2, len(sentence) // 4
    near = [match.end() for match in _CLAUSE.finditer(sentence, middle - reach, middle + reach)]
    near = near or [m.end() for m in _BLANK.finditer(sentence, middle - reach, middle + reach)]
    cuts = near or [match.end() for match in _BLANK.finditer(sentence)]
    if not cuts:
        return None
    cut = min(cuts, key=lambda place: abs(place - middle))
    return sentence[:cut].rstrip(), sentence[cut:].lstrip()
