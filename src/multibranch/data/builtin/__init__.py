"""Corpora that need no files and no network: generated from a seed, the same on every machine.

=============  ===========================================================================
translation    Valdish, a German-like language of our own grammar, to English
code           what a function does, in English, to the function in Python
entailment     two English sentences, to whether the first implies the second
=============  ===========================================================================

``generate`` streams pairs of text, ``builtin`` writes them to files and prepares them. What is held
out for validation and test is decided by the sentences themselves, not by their place in the
stream: no sentence of the test set is in the training set, of whatever seed and size.
"""

from multibranch.data.builtin.corpora import CORPORA, generate
from multibranch.data.builtin.prepared import builtin

__all__ = ["CORPORA", "builtin", "generate"]
