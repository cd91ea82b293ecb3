"""What MiniLM's variants are measured beside: PyTorch eager, and onnxruntime fp32 in every form worth trying.

None of it goes through tailcut: this is what one would do by hand.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

Run = Callable[[dict[str, npt.NDArray[Any]]], npt.NDArray[Any]]

_NAMES = ["input_ids", "attention_mask"]


def eager(threads: int) -> dict[str, Run]:
    """Return the module in eager mode, with attention written out and with torch's own function."""
    import torch

    from minilm.model import load

    torch.set_num_threads(threads)

    def run_of(module: torch.nn.Module) -> Run:
        def run(inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
            with torch.inference_mode():
                found: npt.NDArray[Any] = module(*(torch.from_numpy(inputs[name]) for name in _NAMES)).numpy()
            return found

        return run

    return {"PyTorch eager": run_of(load()), "PyTorch eager, sdpa": run_of(load("sdpa"))}


def onnxruntime_candidates(threads: int) -> dict[str, Run]:
    """Return fp32 sessions: both of torch's exporters, fused or not, spinning threads or not, 1 or 2 threads."""
    found: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _exports(Path(folder)).items():
            for count in sorted({1, threads}):
                for spinning in ("1", "0") if count > 1 else ("0",):
                    label = f"{name}, {count} thread{'s' * (count > 1)}{', spinning' * (spinning == '1')}"
                    found[label] = _session(path, count, spinning)
    return found


def _session(path: Path, threads: int, spinning: str) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = session.run(None, inputs)[0]
        return found

    return run


def _exports(folder: Path) -> dict[str, Path]:
    """Export with the current exporter and with the older one, whose graphs the transformer fusions know."""
    import torch

    from minilm.model import load
    from minilm.tokens import encode

    module = load()
    example = encode(["One text that is a little longer than the other.", "Another text."])
    inputs = tuple(torch.from_numpy(example[name]) for name in _NAMES)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    current, older = folder / "current.onnx", folder / "older.onnx"
    with _quiet():
        # Not "embedding": the exporter gives that name to the look-up of tokens too.
        torch.onnx.export(
            module, inputs, current, input_names=_NAMES, output_names=["sentence"], dynamo=True, external_data=False,
            dynamic_shapes=(free, free), verbose=False,
        )  # fmt: skip
        axes = {name: {0: "rows", 1: "tokens"} for name in _NAMES}
        torch.onnx.export(
            module, inputs, older, input_names=_NAMES, output_names=["sentence"], dynamo=False, dynamic_axes=axes,
            opset_version=17,
        )  # fmt: skip
        fused, counts = _fused(older, folder / "fused.onnx", module)
    return {"torch.export": current, "TorchScript": older, f"TorchScript, {counts} attentions fused": fused}


def _fused(path: Path, target: Path, module: Any) -> tuple[Path, int]:
    from onnxruntime.transformers.optimizer import optimize_model

    config = module.encoder.config
    model = optimize_model(
        str(path), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=0
    )
    model.save_model_to_file(str(target))
    return target, int(model.get_fused_operator_statistics()["Attention"])


@contextlib.contextmanager
def _quiet() -> Any:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
