"""ONNX: encoders, and encoder-decoders with a cache, for any engine that reads it.

An encoder-decoder becomes two graphs: what is computed once a source, and what once a step.

    encoder.onnx   source (b, s) → states (b, s, d); mask (b, s), True where there is a token; and
                   for every decoder layer i memory_key.i and memory_value.i (b, h, s, w), the keys
                   and values of its attention to the source
    decoder.onnx   ids (b, t), the next target tokens; mask; memory_key.i, memory_value.i; and
                   past_key.i, past_value.i (b, h, p, w) of the p tokens before, where p may be 0
                   → logits (b, t, V); present_key.i, present_value.i (b, h, p + t, w)

The first ids are <s>; what a step calls present is the next one's past. Rows are independent: a
beam search gives every hypothesis a row, and reorders the rows of the past.

An encoder by itself is encoder.onnx: ids (b, s) → states (b, s, d). Branches are folded into heads:
h = N_a·m. The graphs are written node by node: that takes a moment, and their inputs, outputs and
dimensions have names to work with.
"""

from pathlib import Path
from typing import Any

from torch import nn

from multibranch.errors import UserError, needed
from multibranch.export.checks import checked_onnx
from multibranch.export.folder import (
    EXTRA,
    Tell,
    check_finite,
    check_output,
    describe,
    untold,
    written_folder,
)
from multibranch.export.onnx_graph import Graph, Shape
from multibranch.export.onnx_model import FORMAT
from multibranch.export.plain import plain_attention, plain_feed_forward
from multibranch.nn import MultiBranchEncoder, MultiBranchTransformer, fold
from multibranch.text import TextPipeline

_FLOAT, _WHOLE, _BOOL = "FLOAT", "INT64", "BOOL"


def export_onnx(
    model: MultiBranchTransformer | MultiBranchEncoder,
    text: TextPipeline | None,
    folder: str | Path,
    *,
    decoding: dict[str, Any] | None = None,
    tell: Tell = untold,
) -> Path:
    """Write the model's graphs, and its text files where it has some; whole or not at all.

    The folder's description says by how much onnxruntime's numbers differ from PyTorch's, or null
    where onnxruntime is not installed.

    Args:
        decoding: search options other than the defaults, which the folder remembers.
        tell: called with every step as it begins.
    """
    folder = Path(folder)
    needed("onnx", install=EXTRA, purpose="Exporting to ONNX")
    check_output(folder)
    check_expressible(model)
    tell("folding the branches into heads")
    graphs = build_graphs(model)
    with written_folder(folder) as new:
        tell(f"writing {' and '.join(f'{name}.onnx' for name in graphs)}")
        for name, graph in graphs.items():
            graph.save(new / f"{name}.onnx")
        if text is not None:
            text.save(new)
        describe(
            new,
            format=FORMAT,
            settings=model.settings,
            decoding=decoding or {},
            largest_difference=checked_onnx(new, model, tell=tell),
        )
    return folder


def check_expressible(model: nn.Module) -> None:
    """Raise a UserError that names what the graphs cannot express."""
    if not isinstance(model, MultiBranchTransformer | MultiBranchEncoder):
        raise UserError(
            f"ONNX export takes a MultiBranchTransformer or a MultiBranchEncoder, not a "
            f"{type(model).__name__}"
        )
    for side in ("encoder", "decoder"):
        if not len(getattr(model, side, [None])):
            raise UserError(f"a model without {side} layers cannot be exported")
    check_finite(model)


def build_graphs(model: MultiBranchTransformer | MultiBranchEncoder) -> dict[str, Graph]:
    """The graphs of a model by the names of their files."""
    folded = fold(model).float().cpu().eval().requires_grad_(False)
    if isinstance(folded, MultiBranchTransformer):
        return {"encoder": source_graph(folded), "decoder": target_graph(folded)}
    return {"encoder": encoder_graph(folded)}


def encoder_graph(model: MultiBranchEncoder) -> Graph:
    """ids (b, s) → states (b, s, d)"""
    graph = Graph()
    ids = graph.input("ids", _WHOLE, ["batch", "source"])
    states, _ = _encode(graph, model, ids)
    graph.output("states", states, _FLOAT, ["batch", "source", model.settings["width"]])
    return graph


def source_graph(model: MultiBranchTransformer) -> Graph:
    """source (b, s) → states, mask, and the keys and values of every decoder layer's memory."""
    graph = Graph()
    source = graph.input("source", _WHOLE, ["batch", "source"])
    states, there = _encode(graph, model, source)
    graph.output("states", states, _FLOAT, ["batch", "source", model.settings["width"]])
    graph.output("mask", there, _BOOL, ["batch", "source"])
    for number, block in enumerate(model.decoder):
        layer = plain_attention(block.cross_attention)  # type: ignore[arg-type]
        shape: Shape = ["batch", layer.heads, "source", layer.head_width]
        for name, projection in (("key", layer.key), ("value", layer.value)):
            cache = graph.heads(states, projection, layer)
            graph.output(f"memory_{name}.{number}", cache, _FLOAT, shape)
    return graph


def target_graph(model: MultiBranchTransformer) -> Graph:
    """The next t target tokens, and all caches → logits, and the caches with them in it."""
    graph = Graph()
    ids = graph.input("ids", _WHOLE, ["batch", "target"])
    source = graph.input("mask", _BOOL, ["batch", "source"])
    _cache_inputs(graph, model)
    past = graph.length("past_key.0", 2)
    end = graph.op("Add", past, graph.length(ids, 1))
    places = graph.range(past, end)  # (t,)
    every = graph.range(graph.whole_number(0), end)  # (p + t,)
    rows = graph.op("Unsqueeze", places, graph.whole(1))
    causal = graph.seen(graph.op("LessOrEqual", every, rows))  # (t, p + t)
    source = graph.seen(graph.op("Unsqueeze", source, graph.whole(1, 2)))  # (b, 1, 1, s)
    states = graph.embed(ids, places, model.target_embedding)
    for number, block in enumerate(model.decoder):
        states = _decoder_block(graph, block, number, states, causal, source)
    if model.settings["norm"] == "pre":
        states = graph.norm(states, model.decoder_norm)  # type: ignore[arg-type]
    logits = graph.scores(states, model.output_vectors)
    size = model.settings["target_vocabulary"]
    graph.output("logits", logits, _FLOAT, ["batch", "target", size])
    return graph


def _cache_inputs(graph: Graph, model: MultiBranchTransformer) -> None:
    for room, length in (("memory", "source"), ("past", "past")):
        for number, block in enumerate(model.decoder):
            layer: Any = block.cross_attention if room == "memory" else block.attention
            for kind in ("key", "value"):
                shape = ["batch", layer.heads, length, layer.head_width]
                graph.input(f"{room}_{kind}.{number}", _FLOAT, shape)


def _encode(
    graph: Graph, model: MultiBranchTransformer | MultiBranchEncoder, ids: str
) -> tuple[str, str]:
    """ids (b, s) → the encoder's states (b, s, d), and (b, s) True where there is a token."""
    padding = graph.whole_number(model.padding)
    there = graph.op("Not", graph.op("Equal", ids, padding))
    mask = graph.seen(graph.op("Unsqueeze", there, graph.whole(1, 2)))  # (b, 1, 1, s)
    places = graph.range(graph.whole_number(0), graph.length(ids, 1))
    embedding: Any = getattr(model, "embedding", None) or model.source_embedding
    states = graph.embed(ids, places, embedding)
    for block in model.encoder:
        states = _encoder_block(graph, block, states, mask)
    if model.settings["norm"] == "pre":
        states = graph.norm(states, model.encoder_norm)  # type: ignore[arg-type]
    return states, there


def _encoder_block(graph: Graph, block: Any, states: str, mask: str) -> str:
    layer = plain_attention(block.attention)
    before = _before(graph, block, states, block.attention_norm)
    query, key, value = (
        graph.heads(before, projection, layer)
        for projection in (layer.query, layer.key, layer.value)
    )
    attended = graph.attend(query, key, value, mask, layer)
    states = _after(graph, block, states, attended, block.attention_norm)
    return _feed_forward(graph, block, states)


def _decoder_block(
    graph: Graph, block: Any, number: int, states: str, causal: str, source: str
) -> str:
    layer = plain_attention(block.attention)
    before = _before(graph, block, states, block.attention_norm)
    caches = []
    for kind, projection in (("key", layer.key), ("value", layer.value)):
        new = graph.heads(before, projection, layer)
        caches.append(graph.op("Concat", f"past_{kind}.{number}", new, axis=2))
        shape: Shape = ["batch", layer.heads, "past + target", layer.head_width]
        graph.output(f"present_{kind}.{number}", caches[-1], _FLOAT, shape)
    query = graph.heads(before, layer.query, layer)
    attended = graph.attend(query, caches[0], caches[1], causal, layer)
    states = _after(graph, block, states, attended, block.attention_norm)
    layer = plain_attention(block.cross_attention)
    before = _before(graph, block, states, block.cross_attention_norm)
    query = graph.heads(before, layer.query, layer)
    memory = [f"memory_{kind}.{number}" for kind in ("key", "value")]
    attended = graph.attend(query, memory[0], memory[1], source, layer)
    states = _after(graph, block, states, attended, block.cross_attention_norm)
    return _feed_forward(graph, block, states)


def _feed_forward(graph: Graph, block: Any, states: str) -> str:
    before = _before(graph, block, states, block.feed_forward_norm)
    output = graph.feed_forward(before, plain_feed_forward(block.feed_forward))
    return _after(graph, block, states, output, block.feed_forward_norm)


def _before(graph: Graph, block: Any, states: str, norm: nn.LayerNorm) -> str:
    return graph.norm(states, norm) if block.pre_norm else states


def _after(graph: Graph, block: Any, states: str, output: str, norm: nn.LayerNorm) -> str:
    total = graph.op("Add", states, output)
    return total if block.pre_norm else graph.norm(total, norm)
