"""Torch on a GPU: a call returns once its kernels are queued, and whoever first reads its answer waits for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from tailcut.profiler.recording.tracing import tracer

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
