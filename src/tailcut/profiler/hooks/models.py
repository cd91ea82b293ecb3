"""Models: the outermost call of torch, onnxruntime, boosters, OpenVINO, Keras; modules of the user's; tokenizers."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, islice
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import Calls, hook_of, replaces, wrap, wrap_present
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.model_libraries import libraries
from tailcut.profiler.recording.tracing import MODEL, close_timed, current, open_timed, tracer
from tailcut.profiler.records import TORCH_ON_GPU, Stage

_Name = Callable[[tuple[Any, ...], dict[str, Any]], str]


def _of_class(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return type(args[0]).__name__


def _method(name: str) -> _Name:
    return lambda args, kwargs: f"{type(args[0]).__name__}.{name}"


def _of(library: str, name: _Name) -> _Name:
    """The same label; models with it are recorded as run by the library."""

    def label(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        found = name(args, kwargs)
        libraries.tell(found, library)
        return found

    return label


def _runtime(owner: Any, names: tuple[str, ...], library: str, name: _Name) -> None:
    """Hook a runtime's calls: what calls it may be a model to other hooks, but is only what goes around it."""
    wrap_present(owner, names, MODEL, _of(library, name))
    for one in names:
        if hasattr(owner, one):
            setattr(owner, one, _telling(getattr(owner, one), library))


def _telling(function: Any, library: str) -> Any:
    @functools.wraps(function)
    def tell(*args: Any, **kwargs: Any) -> Any:
        libraries.tell_inside(library)
        return function(*args, **kwargs)

    return tell


def _hook_torch(module: ModuleType) -> None:
    """``Module.__call__`` of the outermost module, and of those that its own ``forward`` calls where it is the user's.

    All others pass with one comparison. A GPU is waited for once, at the end of the outermost module.
    """
    original = module.Module.__call__
    modules, model, tell = sys.modules, MODEL, libraries.tell
    current_span, frame_of, is_user = current.get, sys._getframe, tracer.places.is_user
    # What torch's own does where nothing is compiled: a model has dozens of modules, and each call of one more costs.
    known = all(hasattr(module.Module, name) for name in ("_wrapped_call_impl", "_compiled_call_impl", "_call_impl"))
    shortcut = known and original is module.Module._wrapped_call_impl

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A compiler that traces the module must not see the spans. (torch itself is not whole yet when it is hooked.)
        if "torch._dynamo" in modules and modules["torch"].compiler.is_compiling():
            return original(self, *args, **kwargs)
        parent = current_span()
        inside = parent is not None and parent.stage is model
        passes = parent is not None and inside and not (parent.parts and is_user(frame_of(1).f_code.co_filename))
        if passes:
            if shortcut and self._compiled_call_impl is None:
                return self._call_impl(*args, **kwargs)
            return original(self, *args, **kwargs)
        gpu = None if inside else gpu_of(self, args, kwargs)
        whole = original if gpu is None else finished(original, gpu)
        if parent is None or parent.trace.over:
            return _for_nobody(whole, self, args, kwargs)
        place, at = tracer.places.spot(frame_of(1))
        kind: Any = type(self)
        name = kind.__name__
        tell(name, "torch" if gpu is None else TORCH_ON_GPU)
        span = open_timed(parent, model, name, place, at)
        span.parts = not inside and gpu is None and _is_users(kind)
        try:
            return whole(self, *args, **kwargs)
        finally:
            close_timed(span)
            if not inside:
                captured.torch(self, args, kwargs, span.end_ns - span.start_ns)

    module.Module.__call__ = call


@functools.cache
def _is_users(kind: Any) -> bool:
    """Tell whether a module's ``forward`` stands in the user's code."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    return code is not None and tracer.places.is_user(code.co_filename)


def _for_nobody(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that no request is known to wait for."""
    began_ns = now()
    try:
        with background_calls.counted(MODEL, type(module).__name__):
            return call(module, *args, **kwargs)
    finally:
        captured.torch(module, args, kwargs, now() - began_ns)


def _hook_onnxruntime(module: ModuleType) -> None:
    def label(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        path = getattr(args[0], "_model_path", None)
        return os.path.basename(str(path)) if path else "InferenceSession"

    names = ("run", "run_with_iobinding", "run_with_ort_values")
    session = getattr(module, "Session", module.InferenceSession)
    _runtime(session, names, "onnxruntime", label)
    original = session.run

    @replaces(session, "run")
    def capture(self: Any, output_names: Any, input_feed: Any, *rest: Any, **named: Any) -> Any:
        began_ns = now()
        try:
            return original(self, output_names, input_feed, *rest, **named)
        finally:
            captured.onnx(self, input_feed, now() - began_ns)  # to time its layers later


def _hook_openvino(module: ModuleType) -> None:
    for name in ("CompiledModel", "InferRequest"):
        owner = getattr(module, name, None)
        if owner is not None:
            _runtime(owner, ("__call__", "infer"), "openvino", _of_class)


def _hook_generation(module: ModuleType) -> None:
    name = _method("generate")

    def label(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        found, torch = name(args, kwargs), sys.modules.get("torch")
        # Models on other runtimes generate with the same loop (optimum), and have modules of torch around them at most.
        if torch is not None and isinstance(args[0], torch.nn.Module):
            # It waits for the GPU by itself: after each token it looks whether that is the last.
            libraries.tell(found, "torch" if gpu_of(args[0]) is None else TORCH_ON_GPU)
        return found

    wrap(module.GenerationMixin, "generate", MODEL, label)


def _hook_tokenizer(module: ModuleType) -> None:
    owner = module.PreTrainedTokenizerBase
    for name in ("__call__", "encode", "encode_plus", "batch_encode_plus"):
        if hasattr(owner, name):
            wrap(owner, name, Stage.PREPROCESS, _method(name))


HOOKS: dict[str, Hook] = {
    "torch.nn.modules.module": _hook_torch,
    "onnxruntime.capi.onnxruntime_inference_collection": _hook_onnxruntime,
    "xgboost.core": hook_of(Calls("Booster", "predict inplace_predict", MODEL, _of("xgboost", _method("predict")))),
    "lightgbm.basic": hook_of(Calls("Booster", "predict", MODEL, _of("lightgbm", _method("predict")))),
    "catboost.core": hook_of(
        *(
            Calls(name, "predict", MODEL, _of("catboost", _method("predict")))
            for name in ("CatBoost", "CatBoostClassifier", "CatBoostRegressor")
        )
    ),
    "openvino._ov_api": _hook_openvino,
    "keras.src.models.model": hook_of(
        Calls("Model", "__call__ predict predict_on_batch", MODEL, _of("keras", _of_class))
    ),
    "transformers.generation.utils": _hook_generation,
    "transformers.tokenization_utils_base": _hook_tokenizer,
}


_NOTE = (
    "a traced call of a model on a GPU ends when the GPU has finished, not when its kernels are queued: otherwise "
    "the line that reads the answer would be charged for it"
)


def gpu_of(module: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """Name the device of a torch.nn.Module that computes on a GPU; None where it does not.

    The first of its parameters, of its buffers and of the tensors that it is given which is on one says it: of a model
    that is spread over several GPUs the first stands for all.
    """
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    with suppress(Exception):  # what a module's class has under torch's names is its own, and no matter of a profile
        given = chain(args, (kwargs or {}).values())
        for tensor in chain(islice(module.parameters(), 1), islice(module.buffers(), 1), given):
            if getattr(tensor, "is_cuda", False) is True:
                return tensor.device
    return None


def finished(call: Callable[..., Any], gpu: Any) -> Callable[..., Any]:
    """The same call that returns when what this thread has put into its stream of a GPU is done.

    Args:
        gpu: the device.
    """

    def call_and_wait(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        cuda = sys.modules["torch.cuda"]
        with cuda.device(gpu):
            # While a graph is captured nothing runs, and waiting would break it.
            if not cuda.is_current_stream_capturing():
                cuda.current_stream().synchronize()
                tracer.note(_NOTE)
        return answer

    return call_and_wait
