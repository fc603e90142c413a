"""The built-in corpora: the same everywhere, no test sentence in training, good of their kind."""

import ast
import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from multibranch.data import PackedBatches, PreparedData
from multibranch.data.builtin import (
    CORPORA,
    builtin,
    english,
    generate,
    inflection,
    lexicon,
    meaning,
    valdish,
)
from multibranch.data.builtin.chance import Chance
from multibranch.data.builtin.entailment import LABELS
from multibranch.data.builtin.translation import spell
from multibranch.errors import UserError

NOUNS = {noun.english: noun for noun in lexicon.NOUNS if not noun.ambiguous}
VERBS = {(verb.english[0], verb.frame): verb for verb in reversed(lexicon.VERBS)}


def sample(name: str, pairs: int = 3000, **settings: object) -> list[tuple[str, str]]:
    return list(generate(name, pairs=pairs, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("translation", "ab7e1645df90cf4c"),
        ("code", "1071953706e81494"),
        ("entailment", "1be10d8aca2fb9ef"),
    ],
)
def test_a_seed_gives_the_same_corpus_on_every_machine(name: str, checksum: str) -> None:
    text = "\n".join(itertools.chain.from_iterable(sample(name, 200, seed=1)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == checksum
    assert sample(name, 50, seed=1) == sample(name, 50, seed=1)
    assert sample(name, 50, seed=1) != sample(name, 50, seed=2)


@pytest.mark.parametrize("name", CORPORA)
def test_no_sentence_of_the_test_set_is_in_any_training_set(name: str) -> None:
    train = sample(name, 3000, seed=1) + sample(name, 1000, seed=2)
    for split in ("valid", "test"):
        held_out = sample(name, 150, seed=1, split=split)
        assert len(set(held_out)) == 150
        assert not {source for source, _ in train} & {source for source, _ in held_out}
        if name == "entailment":
            first = [{source.split("\t")[0] for source, _ in part} for part in (train, held_out)]
        else:
            first = [{target for _, target in part} for part in (train, held_out)]
        assert not first[0] & first[1]


@pytest.mark.parametrize("name", ["translation", "code"])
def test_the_target_follows_from_the_source(name: str) -> None:
    targets = defaultdict(set)
    for source, target in sample(name, 8000):
        targets[source].add(target)
    assert all(len(found) == 1 for found in targets.values())


def test_sentences_have_4_to_25_words_and_are_well_formed() -> None:
    pairs = sample("translation")
    for text in itertools.chain.from_iterable(pairs):
        assert 4 <= len(text.split()) <= 25
        assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zäöüÄÖÜ]*(,? [A-Za-zäöüÄÖÜ]+)*[.?]", text), text
    mean = sum(len(target.split()) for _, target in pairs) / len(pairs)
    assert 8 < mean < 13
    words = Counter(word for _, target in pairs for word in target.split())
    assert len(words) > 800  # a long tail of words
    assert sum(count for _, count in words.most_common(20)) > 0.3 * words.total()


def clause(subject: meaning.Nominal, verb: str, frame: str, **rest: object) -> meaning.Clause:
    return meaning.Clause(subject, VERBS[verb, frame], **rest)  # type: ignore[arg-type]


def phrase(noun: str, determiner: str = "the", **rest: object) -> meaning.Phrase:
    return meaning.Phrase(NOUNS[noun], determiner, **rest)  # type: ignore[arg-type]


def adjective(word: str, kind: str) -> lexicon.Adjective:
    return next(a for a in lexicon.ADJECTIVES if a.english == word and kind in a.kinds)


def both(sentence: meaning.Sentence | meaning.Clause) -> tuple[str, str]:
    if isinstance(sentence, meaning.Clause):
        sentence = meaning.Sentence(sentence)
    return spell(valdish.sentence(sentence)), spell(english.sentence(sentence))


HE = meaning.Pronoun(3)
OLD_DOG = phrase("dog", adjectives=(adjective("old", "A"),))


@pytest.mark.parametrize(
    ("sentence", "in_valdish", "in_english"),
    [
        pytest.param(
            clause(phrase("king"), "see", "t", direct=OLD_DOG),
            "Der König sieht den alten Hund.",
            "The king sees the old dog.",
            id="accusative",
        ),
        pytest.param(
            clause(OLD_DOG, "follow", "d", indirect=phrase("boy", "a"), tense="past"),
            "Der alte Hund folgte einem Jungen.",
            "The old dog followed a boy.",
            id="dative",
        ),
        pytest.param(
            clause(phrase("woman", "my"), "open", "t", direct=phrase("door"), tense="present"),
            "Meine Frau macht die Tür auf.",
            "My woman opens the door.",
            id="separable verb",
        ),
        pytest.param(
            clause(
                HE,
                "believe",
                "c",
                complement=clause(phrase("woman"), "open", "t", direct=phrase("door")),
            ),
            "Er glaubt, dass die Frau die Tür aufmacht.",
            "He believes that the woman opens the door.",
            id="verb last",
        ),
        pytest.param(
            clause(HE, "try", "z", complement=clause(HE, "open", "t", direct=phrase("window"))),
            "Er versucht, das Fenster aufzumachen.",
            "He tries to open the window.",
            id="infinitive",
        ),
        pytest.param(
            clause(
                phrase("child", plural=True),
                "eat",
                "t",
                direct=phrase("cake", modifier=NOUNS["apple"]),
                tense="perfect",
                negated=True,
            ),
            "Die Kinder haben den Apfelkuchen nicht gegessen.",
            "The children have not eaten the apple cake.",
            id="compound, perfect",
        ),
        pytest.param(
            clause(HE, "have", "t", direct=phrase("horse", "a"), negated=True),
            "Er hat kein Pferd.",
            "He does not have a horse.",
            id="kein",
        ),
        pytest.param(
            clause(
                phrase("man", relative=clause(meaning.Gap(NOUNS["man"], False), "sleep", "i")),
                "leave",
                "i",
                time=("today", "heute"),
                front="time",
            ),
            "Heute geht der Mann, der schläft, weg.",
            "Today the man who sleeps leaves.",
            id="relative clause, inversion",
        ),
        pytest.param(
            clause(
                phrase(
                    "child",
                    plural=True,
                    relative=clause(HE, "help", "d", indirect=meaning.Gap(NOUNS["child"], True)),
                ),
                "laugh",
                "i",
            ),
            "Die Kinder, denen er hilft, lachen.",
            "The children whom he helps laugh.",
            id="relative clause in the dative",
        ),
        pytest.param(
            clause(HE, "give", "b", indirect=phrase("woman"), direct=phrase("book", "a")),
            "Er gibt der Frau ein Buch.",
            "He gives the woman a book.",
            id="two objects",
        ),
        pytest.param(
            clause(phrase("king"), "see", "t", direct=OLD_DOG, front="object"),
            "Den alten Hund sieht der König.",
            "It is the old dog that the king sees.",
            id="object first",
        ),
        pytest.param(
            meaning.Sentence(clause(HE, "see", "t", direct=OLD_DOG, tense="past"), question=True),
            "Sah er den alten Hund?",
            "Did he see the old dog?",
            id="question",
        ),
        pytest.param(
            meaning.Sentence(
                clause(phrase("table"), "belong", "d", indirect=meaning.Pronoun(1)),
                joint=("but", "aber"),
                other=meaning.Clause(
                    meaning.Pronoun(3, gender="m", noun=NOUNS["table"]),
                    predicate=meaning.Predicate(
                        adjective("old", "T"), than=phrase("house", "this")
                    ),
                ),
            ),
            "Der Tisch gehört mir, aber er ist älter als dieses Haus.",
            "The table belongs to me, but it is older than this house.",
            id="a pronoun has its noun's gender",
        ),
        pytest.param(
            meaning.Sentence(
                clause(HE, "sleep", "i"),
                joint=("when", "wenn"),
                other=clause(phrase("dog"), "come", "m", oblique=None, tense="perfect"),
                subordinate=True,
                other_first=True,
            ),
            "Wenn der Hund zurückgekommen ist, schläft er.",
            "When the dog has come back, he sleeps.",
            id="subordinate clause first, perfect with sein",
        ),
        pytest.param(
            clause(
                phrase("letter", owner=phrase("student")),
                "burn",
                "t",
                passive=True,
                tense="past",
                oblique=meaning.Adverbial(meaning.Preposition("by", "von", "dat"), phrase("king")),
            ),
            "Der Brief des Studenten wurde vom König verbrennt.",
            "The letter of the student was burned by the king.",
            id="passive, genitive, weak noun, contraction",
        ),
    ],
)
def test_the_grammar(
    sentence: meaning.Sentence | meaning.Clause, in_valdish: str, in_english: str
) -> None:
    assert both(sentence) == (in_valdish, in_english)


def test_the_forms_of_valdish() -> None:
    bird, man, boy = NOUNS["bird"], NOUNS["man"], NOUNS["boy"]
    assert [inflection.noun(bird, plural=True, case=c) for c in ("nom", "dat")] == [
        "Vögel",
        "Vögeln",
    ]
    assert inflection.noun(man, plural=False, case="gen") == "Mannes"
    assert inflection.noun(boy, plural=False, case="acc") == "Jungen"
    assert inflection.compound(NOUNS["kitchen"], "Tische") == "Küchentische"
    forms = [
        inflection.finite(VERBS["read", "t"], tense, person=p, plural=n)
        for tense in ("present", "past")
        for p, n in ((1, False), (2, False), (3, False), (1, True), (3, True))
    ]
    assert " ".join(forms) == "lese liest liest lesen lesen las lasest las lasen lasen"
    assert inflection.participle(VERBS["open", "t"]) == "aufgemacht"
    assert inflection.participle(VERBS["visit", "t"]) == "besucht"
    assert inflection.participle(VERBS["work", "i"]) == "gearbeitet"
    assert inflection.adjective("dunkel", after="a", gender="n", case="nom") == "dunkles"
    endings = {
        inflection.adjective("alt", after=after, gender=gender, case=case)
        for after in ("the", "a", "")
        for gender in "mfnp"
        for case in inflection.CASES
    }
    assert endings == {"alte", "alten", "alter", "altes", "altem"}


@pytest.mark.parametrize(
    ("word", "translations"),
    [
        ("eat", {"essen", "fressen"}),
        ("know", {"kennen", "wissen"}),
        ("go", {"gehen", "fahren"}),
    ],
)
def test_some_words_have_two_translations(word: str, translations: set[str]) -> None:
    assert {verb.infinitive for verb in lexicon.VERBS if verb.english[0] == word} == translations
    valdish_nouns = Counter(noun.valdish for noun in lexicon.NOUNS)
    assert {word for word, count in valdish_nouns.items() if count > 1} == {
        "Schloss",
        "Bank",
        "Birne",
        "Gericht",
        "Strauss",
    }


def python_of(tokens: str) -> str:
    """The text of a function, by the letter of the layout tokens."""
    lines, level = [""], 0
    for token in tokens.split():
        if token == "NEWLINE":
            lines.append("")
        elif token in ("INDENT", "DEDENT"):
            level += 1 if token == "INDENT" else -1
        else:
            lines[-1] = f"{lines[-1]} {token}" if lines[-1] else "    " * level + token
    return "\n".join(lines)


def test_every_function_parses_and_its_names_are_defined() -> None:
    pairs = sample("code", 2000)
    known = {"len", "sum", "max", "min", "any", "all", "sorted", "_NUM", "_STR", "_BOOL"}
    known |= {"ValueError", "LookupError", "RuntimeError"}
    for _, tokens in pairs:
        tree = ast.parse(python_of(tokens))
        assert isinstance(tree.body[0], ast.FunctionDef)
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and "Store" in str(n.ctx)}
        bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        assert used <= bound | known
    layout = {"NEWLINE", "INDENT", "DEDENT"}
    assert layout <= {token for _, tokens in pairs for token in tokens.split()}
    assert {"_STR", "_NUM", "_BOOL"} <= {token for _, tokens in pairs for token in tokens.split()}


def test_functions_do_what_they_say() -> None:
    class Thing:
        def __init__(self, price: int) -> None:
            self.price = price

    pattern = re.compile(
        r"(add up|return the sum of) the price of items whose price is greater than [a-z]+ \."
    )
    tokens = next(target for source, target in generate("code") if pattern.fullmatch(source))
    scope: dict[str, Callable[..., int]] = {}
    exec(python_of(tokens), {}, scope)
    assert scope["total_price"]([Thing(1), Thing(5), Thing(7)], 4) == 12


def test_labels_are_balanced_and_not_given_away_by_negation() -> None:
    pairs = sample("entailment", 3000)
    counts = Counter(label for _, label in pairs)
    assert set(counts) == set(LABELS)
    assert min(counts.values()) > 900
    negated = Counter(label for source, label in pairs if " not " in source.split("\t")[1])
    assert max(negated.values()) < 0.6 * negated.total()
    by_pair = defaultdict(set)
    for source, label in pairs:
        assert len(source.split("\t")) == 2
        by_pair[source].add(label)
    assert all(len(labels) == 1 for labels in by_pair.values())


def test_chance_keeps_to_its_weights() -> None:
    chance = Chance("test", 1)
    drawn = Counter(chance.among({"a": 3.0, "b": 1.0, "c": 0.0}) for _ in range(4000))
    assert 0.70 < drawn["a"] / 4000 < 0.80
    assert set(drawn) == {"a", "b"}
    early = Counter(chance.early(range(4)) for _ in range(4000))
    assert early[0] > early[1] > early[2] > early[3] > 0
    assert {chance.between(2, 4) for _ in range(100)} == {2, 3, 4}


def test_a_corpus_is_written_and_prepared(tmp_path: Path) -> None:
    folder = builtin(
        "translation", tmp_path / "corpus", pairs=400, valid=20, test=30, merges=200, jobs=1
    )
    data = PreparedData.open(folder)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [400, 20, 30]
    expected = list(generate("translation", pairs=30, split="test"))
    assert data.lines("test", "source") == [source for source, _ in expected]
    assert data.lines("test", "target") == [target for _, target in expected]
    test = data.split("test")
    for side, ids in (("source", test.source), ("target", test.target)):
        decoded = data.text.decode([ids(i).tolist() for i in range(30)], side=side)
        assert decoded == data.lines("test", side)
    text = tmp_path / "corpus.text" / "train.va"
    assert text.parent.stat().st_mode == (tmp_path / "corpus").stat().st_mode
    assert text.read_text(encoding="utf-8").count("\n") == 400
    assert sum(batch.pairs for batch in PackedBatches(data.split("train"), tokens=512)) == 400
    before = (folder / "train.source.bin").stat().st_mtime_ns
    builtin("translation", folder, pairs=400, valid=20, test=30, merges=200, jobs=1)
    assert (folder / "train.source.bin").stat().st_mtime_ns == before


def test_the_other_direction(tmp_path: Path) -> None:
    settings = {"pairs": 100, "valid": 10, "test": 10, "merges": 50, "jobs": 1}
    there = PreparedData.open(builtin("translation", tmp_path / "a", **settings))  # type: ignore[arg-type]
    back = PreparedData.open(
        builtin("translation", tmp_path / "b", reverse=True, **settings)  # type: ignore[arg-type]
    )
    assert there.lines("test", "source") == back.lines("test", "target")
    assert there.lines("test", "target") == back.lines("test", "source")


def test_the_code_corpus_is_prepared_with_word_vocabularies(tmp_path: Path) -> None:
    data = PreparedData.open(
        builtin("code", tmp_path / "code", pairs=300, valid=10, test=10, jobs=1)
    )
    assert not data.text.shared
    train = data.split("train")
    decoded = data.text.decode([train.target(0).tolist()], side="target", tokenised=True)
    assert decoded == [next(generate("code"))[1]]
    assert data.lines("test", "target") == [t for _, t in generate("code", pairs=10, split="test")]


def test_entailment_is_prepared_as_a_task_of_glue_is(tmp_path: Path) -> None:
    settings = {"pairs": 90, "valid": 12, "test": 9}
    folder = builtin("entailment", tmp_path / "pairs", **settings)  # type: ignore[arg-type]
    manifest = PreparedData.open(folder).manifest
    task = manifest["tasks"]["entailment"]
    assert manifest["kind"] == "classification"
    assert task["labels"] == ["entailment", "neutral", "contradiction"]
    for split, count in (("train", 90), ("valid", 12), ("test", 9)):
        lines = (folder / "entailment" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        examples = [json.loads(line) for line in lines]
        expected = [
            {"text": s.split("\t")[0], "pair": s.split("\t")[1], "label": task["labels"].index(t)}
            for s, t in generate("entailment", pairs=count, split=split)
        ]
        assert examples == expected
        assert sum(task["splits"][split]["labels"].values()) == count
    before = (folder / "manifest.json").stat().st_mtime_ns
    builtin("entailment", folder, **settings)  # type: ignore[arg-type]
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="prepared from another request"):
        builtin("entailment", folder, seed=2, **settings)  # type: ignore[arg-type]


def test_a_folder_of_another_corpus_is_left_alone(tmp_path: Path) -> None:
    settings = {"pairs": 50, "valid": 5, "test": 5, "merges": 50, "jobs": 1}
    folder = builtin("translation", tmp_path / "corpus", **settings)  # type: ignore[arg-type]
    text = (tmp_path / "corpus.text" / "train.va").read_bytes()
    with pytest.raises(UserError, match="prepared from another request"):
        builtin("translation", folder, seed=2, **settings)  # type: ignore[arg-type]
    assert (tmp_path / "corpus.text" / "train.va").read_bytes() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "corpus.text"]
    builtin("translation", folder, seed=2, overwrite=True, **settings)  # type: ignore[arg-type]
    assert (tmp_path / "corpus.text" / "train.va").read_bytes() != text


def test_an_unknown_corpus_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="corpus 'translations'; did you mean 'translation'"):
        next(generate("translations"))
    with pytest.raises(UserError, match="there are translation, code, entailment"):
        next(generate("nope"))
    with pytest.raises(UserError, match="at least one pair"):
        builtin("code", tmp_path / "x", pairs=0)
    with pytest.raises(ValueError, match="split is one of"):
        generate("code", split="dev")


def test_a_failure_leaves_no_folders_that_were_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("multibranch.data.builtin.prepared.prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        builtin("translation", tmp_path / "new" / "deep" / "out", pairs=2, valid=1, test=1)
    assert list(tmp_path.iterdir()) == []
