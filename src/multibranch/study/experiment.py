"""One experiment of a study: one model, of one seed, and what it starts from.

Its key is a name for people and a folder's name at once:

    de-en.proximal.3-256-1024.m4.l4+4.r0.3.s1

the corpus, the start, N_a-d-d_h, heads, encoder and decoder layers, ρ and the seed; further parts
stand there only where they differ from the usual (f2: two FFN branches; heads: drop-head; ffn0.0: a
rate of the FFN layers' own; rdrop5: R-Drop; keep2: pruned to two branches).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

Start = Literal["scratch", "continued", "proximal", "pruned", "pretrained"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What one trial of a study trains, or prunes, and scores.

    start: "scratch" from random weights; "continued" the standard Transformer trained on as it is;
        "proximal" the standard Transformer branched out; "pruned" a trained MAT with fewer
        branches, not trained again; "pretrained" an encoder that comes from elsewhere.
    keep: branches that pruning leaves.
    """

    corpus: str
    seed: int
    start: Start = "scratch"
    branches: int = 1
    width: int = 256
    hidden: int = 1024
    ffn_branches: int = 1
    heads: int = 4
    encoder_layers: int = 6
    decoder_layers: int = 6
    drop_branch: float = 0.0
    drop_kind: Literal["branch", "head"] = "branch"
    drop_ffn: float | None = None
    r_drop: float = 0.0
    keep: int | None = None
    before: Literal["scratch", "proximal"] = "proximal"  # how a pruned model was trained

    @property
    def cell(self) -> str:
        """The key without the seed: all seeds of a cell are one number in a table."""
        parts = [self.corpus, self.start, f"{self.branches}-{self.width}-{self.hidden}"]
        if self.ffn_branches != 1:
            parts.append(f"f{self.ffn_branches}")
        parts += [f"m{self.heads}", f"l{self.encoder_layers}+{self.decoder_layers}"]
        parts.append(f"r{self.drop_branch:g}")
        if self.drop_kind == "head":
            parts.append("heads")
        if self.drop_ffn is not None:
            parts.append(f"ffn{self.drop_ffn:g}")
        if self.r_drop:
            parts.append(f"rdrop{self.r_drop:g}")
        if self.keep is not None:
            parts.append(f"keep{self.keep}" + ("" if self.before == "proximal" else "-scratch"))
        return ".".join(parts)

    @property
    def key(self) -> str:
        return f"{self.cell}.s{self.seed}"

    @property
    def baseline(self) -> "Experiment":
        """The standard Transformer of this architecture, corpus and seed, trained as such."""
        return replace(
            self,
            start="pretrained" if self.start == "pretrained" else "scratch",
            branches=1,
            drop_branch=0.0,
            drop_kind="branch",
            drop_ffn=None,
            r_drop=0.0,
            keep=None,
            before="proximal",
        )

    @property
    def continued(self) -> "Experiment":
        """The control that the paper lacks: the baseline trained on for as many updates."""
        return replace(self.baseline, start="continued")

    @property
    def parent(self) -> "Experiment | None":
        """The experiment whose model this one starts from."""
        if self.start in ("continued", "proximal"):
            return self.baseline
        if self.start == "pruned":
            return replace(self, start=self.before, keep=None, before="proximal")
        return None

    @property
    def second_stage(self) -> bool:
        """Whether it goes on training a model that was trained before."""
        return self.start in ("continued", "proximal")

    @property
    def branched_from_scratch(self) -> bool:
        """Whether it is a MAT that starts from nothing."""
        return self.start == "scratch" and self.branches > 1

    @property
    def architecture(self) -> str:
        """What gives the weights their shapes, and dropping its units."""
        shape = f"{self.branches}-{self.width}-{self.hidden}-{self.ffn_branches}-{self.heads}"
        return f"{shape}-{self.encoder_layers}+{self.decoder_layers}-{self.drop_kind}"

    @property
    def group(self) -> str:
        """What is compiled alike: trials of one group should follow each other in one process."""
        drops = "drop" if self.drop_branch or self.drop_ffn else "plain"
        twice = "-rdrop" if self.r_drop else ""
        return f"{self.architecture}-{drops}{twice}"

    def model(self) -> dict[str, Any]:
        """The keys of `model:` in a configuration that this experiment decides."""
        return {
            "branches": self.branches,
            "width": self.width,
            "hidden": self.hidden,
            "ffn_branches": self.ffn_branches,
            "heads": self.heads,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "drop_branch": self.drop_branch,
            "drop_kind": self.drop_kind,
            "drop_ffn": self.drop_ffn,
        }

    @property
    def shape(self) -> str:
        """N_a/d/d_h, and N_f where the FFN has several branches."""
        name = f"{self.branches}/{self.width}/{self.hidden}"
        return name if self.ffn_branches == 1 else f"{name}, N_f={self.ffn_branches}"

    def title(self, *, heads: bool = False) -> str:
        """A line for people; heads: with M."""
        plain = self.branches == 1
        kind = "Transformer" if plain else "MAT"
        start = self.before if self.start == "pruned" else self.start
        said = {
            "continued": "Transformer, continued",
            "proximal": f"{kind}, proximal initialisation",
            "scratch": kind if plain else f"{kind} from scratch",
        }.get(start, kind)
        rate = f", ρ={self.drop_branch:g}" if self.drop_branch or not plain else ""
        dropped = " of heads" if self.drop_kind == "head" else ""
        twice = f", R-Drop {self.r_drop:g}" if self.r_drop else ""
        branches = "branch" if self.keep == 1 else "branches"
        pruned = f", pruned to {self.keep} {branches}" if self.start == "pruned" else ""
        many = f", M={self.heads}" if heads else ""
        return f"{said} {self.shape}{many}{rate}{dropped}{twice}{pruned}"


def normalised(experiment: Experiment) -> Experiment:
    """The experiment in the one form that equal experiments share.

    Without dropping there is no kind of dropping, and a rate of the FFN layers that is that of the
    branches is no rate of their own.
    """
    changes: dict[str, Any] = {}
    if not experiment.drop_branch:
        changes["drop_kind"] = "branch"
    if experiment.drop_ffn == experiment.drop_branch:
        changes["drop_ffn"] = None
    return replace(experiment, **changes)
