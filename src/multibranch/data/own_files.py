"""Which recipe the user asks for, and from which files: a known corpus, or the user's own text."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from multibranch.data.files import without_compression
from multibranch.data.recipe import Corpus, Recipe
from multibranch.data.recipes import HOLD_OUT, PARALLEL, find_recipe, parallel
from multibranch.errors import UserError
from multibranch.text import SPECIAL_TOKENS

Pair = Sequence[str] | None

# More is a slip, and `tokenizers` takes memory for all entries before it learns the first.
LARGEST_VOCABULARY = 10_000_000


def requested(
    *,
    recipe: str,
    places: Sequence[Path] = (),
    reverse: bool = False,
    source: str | None = None,
    target: str | None = None,
    train: Pair = None,
    valid: Pair = None,
    test: Pair = None,
    languages: Pair = None,
    tokenised: bool = False,
    hold_out: int | None = None,
    merges: int | None = None,
    vocabulary: Sequence[int] | None = None,
    lowercase: bool | None = None,
    max_length: int | None = None,
    max_ratio: float | None = None,
    first_pairs: int | None = None,
) -> tuple[Corpus, list[Path]]:
    """The recipe with the user's settings, and the places to look for its files."""
    found = find_recipe(recipe)
    _check_numbers(hold_out=hold_out, merges=merges, vocabulary=vocabulary)
    _check_limits(max_length=max_length, max_ratio=max_ratio, first_pairs=first_pairs)
    own = _own_files(source, target, train, valid, test)
    if found is PARALLEL:
        chosen = _of_own_files(own, languages, tokenised=tokenised, hold_out=hold_out)
        places = list(places) or _places(own.values())
    else:
        if own or tokenised or languages or hold_out is not None:
            raise UserError(
                "--source, --target, --train, --valid, --test, --languages, --tokenised and "
                "--hold-out are for your own files: use them with the recipe 'parallel', not "
                f"'{recipe}'."
            )
        if not isinstance(found, Recipe):
            _refuse(
                recipe,
                *(reverse, merges, vocabulary, lowercase, max_length, max_ratio, first_pairs),
            )
            return found, list(places)
        chosen = found
    chosen = chosen.adjusted(
        merges=merges,
        vocabulary=vocabulary,
        lowercase=lowercase,
        max_length=max_length,
        max_ratio=max_ratio,
        first_pairs=first_pairs,
    )
    return (chosen.reversed() if reverse else chosen), list(places)


def _of_own_files(
    own: dict[str, tuple[str, str]], languages: Pair, *, tokenised: bool, hold_out: int | None
) -> Recipe:
    """The recipe of the user's own files, by split."""
    if "train" not in own:
        raise UserError(
            "the recipe 'parallel' takes your files: --source F --target F, or --train A B "
            "--valid A B --test A B."
        )
    if hold_out == 2 and "valid" not in own and "test" not in own:
        raise UserError(
            f"--hold-out must be at least 3, not {hold_out}, where no files are given for "
            f"validation and test: of every {hold_out} pairs 2 would be held out for them, and "
            "none be left to train on."
        )
    if hold_out is not None and "valid" in own:
        raise UserError(
            "--hold-out takes the validation pairs from the training files, and --valid gives "
            "files for them; leave one of them out."
        )
    return parallel(
        languages=_languages(own["train"], languages),
        **own,
        tokenised=tokenised,
        hold_out=HOLD_OUT if hold_out is None else hold_out,
    )


def _check_numbers(
    *, hold_out: int | None, merges: int | None, vocabulary: Sequence[int] | None
) -> None:
    if hold_out is not None and hold_out < 2:
        raise UserError(f"--hold-out must be at least 2, not {hold_out}.")
    if merges is not None:
        _check_size("--merges", merges, least=1)
    for size in vocabulary or ():
        _check_size("--vocabulary", size, least=len(SPECIAL_TOKENS) + 1)


def _check_size(option: str, size: int, *, least: int) -> None:
    if size < least:
        raise UserError(f"{option} must be at least {least}, not {size}.")
    if size > LARGEST_VOCABULARY:
        raise UserError(f"{option} must be at most {LARGEST_VOCABULARY:,}, not {size:,}.")


def _check_limits(
    *, max_length: int | None, max_ratio: float | None, first_pairs: int | None
) -> None:
    if max_length is not None and max_length < 0:
        raise UserError(
            f"--max-length must be at least 1, or 0 to keep all pairs, not {max_length}."
        )
    # Of two lengths the longer is at least 1 times the shorter: below that no pair would be left.
    if max_ratio is not None and max_ratio != 0 and not 1 <= max_ratio < math.inf:
        raise UserError(f"--max-ratio must be at least 1, or 0 to keep all pairs, not {max_ratio}.")
    if first_pairs is not None and first_pairs < 1:
        raise UserError(f"--first-pairs must be at least 1, not {first_pairs}.")


def _own_files(
    source: str | None, target: str | None, train: Pair, valid: Pair, test: Pair
) -> dict[str, tuple[str, str]]:
    if (source is None) != (target is None):
        raise UserError("--source and --target come together: one file for each side.")
    if source is not None and target is not None:
        if train:
            raise UserError("--source and --target are the training files; leave --train out.")
        train = (source, target)
    given = {"train": train, "valid": valid, "test": test}
    return {split: (pair[0], pair[1]) for split, pair in given.items() if pair}


def _places(pairs: Iterable[tuple[str, str]]) -> list[Path]:
    """The files themselves, where no other place is named to look for them."""
    paths = [Path(name) for pair in pairs for name in pair]
    for path in paths:
        if path.exists() and not path.is_file():
            raise UserError(
                f"{path} is no file: give files on the disk, not folders or pipes, for they are "
                "read more than once."
            )
    return paths


def _languages(files: tuple[str, str], given: Pair) -> tuple[str, str]:
    """Both languages, in the lower case that Moses' rules know them by."""
    if given:
        return given[0].lower(), given[1].lower()
    guessed = [PurePosixPath(without_compression(name)).suffix.removeprefix(".") for name in files]
    for name, language in zip(files, guessed):
        if not (2 <= len(language) <= 3 and language.isalpha() and language.lower() != "txt"):
            raise UserError(
                f"the language of {name} cannot be read from its name; say both with "
                "--languages, as in --languages de en."
            )
    return guessed[0].lower(), guessed[1].lower()


def _refuse(recipe: str, *options: object) -> None:
    if any(option not in (None, False) for option in options):
        raise UserError(
            f"{recipe} keeps its text as it is: --reverse, --merges, --vocabulary, --lowercase, "
            "--max-length, --max-ratio and --first-pairs do not apply to it."
        )
