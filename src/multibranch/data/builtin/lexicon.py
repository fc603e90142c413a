"""The words of the built-in translation corpus as objects, read from the tables of ``words``."""

from dataclasses import dataclass

from multibranch.data.builtin import words


@dataclass(frozen=True)
class Noun:
    """A noun in both languages."""

    english: str
    english_plural: str | None
    valdish: str
    gender: str  # m, f, n
    plural: str
    weak: bool
    kind: str
    ambiguous: bool


@dataclass(frozen=True)
class Verb:
    """A verb in both languages. Valdish weak verbs have no parts but the infinitive."""

    english: tuple[str, str, str]  # base, past, participle
    english_particle: str
    infinitive: str
    particle: str
    parts: tuple[str, ...]  # stem of "he", past stem, participle
    sein: bool
    frame: str
    preposition: tuple[str, str, str] | None  # English, Valdish, case
    subjects: str
    objects: str


@dataclass(frozen=True)
class Adjective:
    """An adjective in both languages; ``*_comparative`` is None where rules make it."""

    english: str
    english_comparative: str | None
    valdish: str
    valdish_comparative: str | None
    kinds: str


def _rows(table: str) -> list[list[list[str]]]:
    lines = table.strip().splitlines()
    return [[cell.split() for cell in line.split("|")] for line in lines]


def _kinds(letters: str) -> str:
    return letters.replace("T", "TO")


def _noun(row: list[list[str]]) -> Noun:
    (english, *plural), (valdish, gender, ending), (kind,) = row
    return Noun(
        english=english,
        english_plural=plural[0] if plural else None,
        valdish=valdish,
        gender=gender,
        plural=ending.rstrip("*"),
        weak=ending.endswith("*"),
        kind=kind[0],
        ambiguous=kind.endswith("!"),
    )


def _verb(row: list[list[str]]) -> Verb:
    english, (infinitive, *parts), frame, subjects, *objects = row
    particle, _, infinitive = infinitive.rpartition("+")
    sein = parts[-1:] == ["s"]
    base, past, participle, *rest = english + [_ed(english[0])] * (2 if len(english) == 1 else 0)
    return Verb(
        english=(base, past, participle),
        english_particle=" ".join(rest),
        infinitive=infinitive,
        particle=particle,
        parts=tuple(parts[:-1] if sein else parts),
        sein=sein,
        frame=frame[0] if len(frame) == 1 else "p",
        preposition=(frame[0], frame[1], frame[2]) if len(frame) == 3 else None,
        subjects=_kinds(subjects[0]),
        objects=_kinds(objects[0][0]) if objects else "",
    )


def _ed(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


def _adjective(row: list[list[str]]) -> Adjective:
    (english, *comparative), (valdish, *change), (kinds,) = row
    changed = None
    if change == ["¨"]:
        changed = umlaut(valdish) + "er"
    elif change:
        changed = change[0]
    return Adjective(
        english, comparative[0] if comparative else None, valdish, changed, _kinds(kinds)
    )


def umlaut(word: str) -> str:
    """Change the last vowel that can be changed: Haus → Häus, Vogel → Vögel."""
    for at in reversed(range(len(word))):
        if word[at] in "aouAOU" and not (word[at] == "u" and word[at - 1 : at] == "a"):
            changed = word[at].translate(str.maketrans("aouAOU", "äöüÄÖÜ"))
            return word[:at] + changed + word[at + 1 :]
    return word


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((row[0][0], row[0][1]) for row in _rows(table))


NOUNS = tuple(_noun(row) for row in _rows(words.NOUNS))
VERBS = tuple(_verb(row) for row in _rows(words.VERBS))
ADJECTIVES = tuple(_adjective(row) for row in _rows(words.ADJECTIVES))
MANNERS = _pairs(words.MANNERS)  # (English, Valdish)
NAMES = _pairs(words.NAMES)  # (name, gender)
CITIES = _pairs(words.CITIES)  # (English, Valdish)
