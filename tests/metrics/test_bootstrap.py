"""The test of many systems at once against sacreBLEU's of two."""

import itertools
import random

import pytest

from multibranch.errors import UserError
from multibranch.metrics import multi_bleu, paired_bootstrap
from multibranch.metrics.bootstrap import Bootstrap

pytest.importorskip("sacrebleu")


def outputs(errors: float) -> tuple[list[str], list[str]]:
    """Outputs that differ from their references in a share of the words, and the references."""
    rng, words = random.Random(1), [f"w{index}" for index in range(50)]
    references = [rng.choices(words, k=rng.randint(1, 20)) for _ in range(100)]
    made = [[rng.choice(words) if rng.random() < errors else w for w in r] for r in references]
    return [" ".join(line) for line in made], [" ".join(line) for line in references]


def test_the_bootstrap_of_many_systems_says_what_sacrebleus_does() -> None:
    (good, references), (near, _), (bad, _) = (outputs(share) for share in (0.1, 0.12, 0.4))
    systems = [good, near, good[:97] + bad[97:], bad]
    systems += [[""] * 100, good[:50] + ["a b"] * 50]  # no match at all, and far too short
    many = Bootstrap(references, samples=200)
    resampled = [many.resample(each) for each in systems]
    p_values = []
    for one, other in itertools.permutations(range(len(systems)), 2):
        usual = paired_bootstrap(
            systems[one], systems[other], references, samples=200, metric="multi-bleu"
        )
        found = many.compare(resampled[one], resampled[other])
        assert found["difference"] == pytest.approx(usual["difference"], abs=1e-9)
        assert found["p_value"] == pytest.approx(usual["p_value"], abs=1e-9)
        assert found["significant"] == usual["significant"]
        p_values.append(found["p_value"])
    assert len(set(p_values)) > 3
    assert many.compare(resampled[0], resampled[0])["p_value"] == 1
    assert resampled[5].score == pytest.approx(multi_bleu(systems[5], references).value)
    assert many.signature.startswith("nrefs:1|bs:200|seed:12345|case:mixed|")
    lowered = Bootstrap(references, samples=200, lowercase=True)
    assert lowered.signature.startswith("nrefs:1|bs:200|seed:12345|case:lc|")
    with pytest.raises(UserError, match="2 outputs came for 100 references;"):
        many.resample(["a", "b"])
