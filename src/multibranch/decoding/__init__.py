"""Decoding: beam search, greedy search and sampling over a cache, ensembles, the Translator.

Read in this order: options (what is asked for), search (the loop), beam and sampling (its steps),
rules (what hypotheses may contain), ensemble (what is stepped through), generate (ids in,
hypotheses out), translator (text in, text out), attention, picture and page (what a model looked
at). parallel (batches side by side on a CPU) and graphs (steps replayed on a GPU) are for speed.
"""

from multibranch.decoding.ensemble import Ensemble
from multibranch.decoding.generate import generate
from multibranch.decoding.options import Hypothesis, SearchOptions
from multibranch.decoding.translator import Translator

__all__ = ["Ensemble", "Hypothesis", "SearchOptions", "Translator", "generate"]
