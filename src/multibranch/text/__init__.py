"""Text to ids and back: Moses tokenising, BPE and word vocabularies, detokenising, code.

``TextPipeline`` is what a model carries with it; ``learn_bpe`` and ``learn_words`` make its
vocabularies; ``special`` holds the ids that mean the same everywhere.

Read pipeline and vocabulary first. Of languages: normalise and moses, detokenise for the way back,
and sentences, which cuts documents. Of code: programs, and code for its tokens and layout.
"""

from multibranch.text.pipeline import TextPipeline, TextSettings
from multibranch.text.special import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from multibranch.text.vocabulary import WordCounter, learn_bpe, learn_words

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIAL_TOKENS",
    "UNK",
    "TextPipeline",
    "TextSettings",
    "WordCounter",
    "learn_bpe",
    "learn_words",
]
