"""Torch on a GPU: a call returns once its kernels are queued, and whoever first reads its answer waits for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tailcut.profile.tracing import tracer

_NOTE = (
    "a traced call of a model on a GPU ends when the GPU is done with it, and not when its kernels are queued: else"
    " the line that reads the answer would be charged for it"
)


def is_on_gpu(module: Any) -> bool:
    """Whether a torch.nn.Module has its weights on a GPU; the first of them stands for all."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return False
    first = next(module.parameters(), None)
    return first is not None and bool(first.is_cuda)


def finished(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call that returns when what this thread has put into its stream is done."""

    def call_and_wait(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        cuda = sys.modules["torch.cuda"]
        # While a graph is captured nothing runs, and waiting would break it.
        if not cuda.is_current_stream_capturing():
            cuda.current_stream().synchronize()
            tracer.note(_NOTE)
        return answer

    return call_and_wait
