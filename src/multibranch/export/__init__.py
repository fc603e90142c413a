"""Export: trained models for other engines, CTranslate2 (int8) and ONNX.

Read in this order: plain (layers as plain matrices), ctranslate2 (one of its models), opening (such
a folder again), engine (it with the interface of decoding.Translator), onnx_graph and onnx (graphs,
node by node), onnx_model (them in onnxruntime), onnx_classifier (through PyTorch's exporter),
checks (held against PyTorch before anything is put in place), folder (what all write), exporting
(the verb).
"""

from multibranch.export.ctranslate2 import QUANTIZATIONS, export_ctranslate2
from multibranch.export.engine import CTranslate2Engine
from multibranch.export.exporting import FORMATS, export
from multibranch.export.onnx import export_onnx
from multibranch.export.onnx_classifier import export_onnx_classifier
from multibranch.export.onnx_model import OnnxModel

__all__ = [
    "FORMATS",
    "QUANTIZATIONS",
    "CTranslate2Engine",
    "OnnxModel",
    "export",
    "export_ctranslate2",
    "export_onnx",
    "export_onnx_classifier",
]
