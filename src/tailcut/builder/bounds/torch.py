"""Indices of a torch module: one run on a few holdout rows, with every input value followed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.bounds.indices import Index, Seen
from tailcut.builder.bounds.trials import Trials
from tailcut.models.runtimes.torch_call import in_order


def seen(module: Any, trials: Trials) -> Seen:
    """Return what a run of the module on the trials' rows shows; empty where the module cannot be run so."""
    import torch

    from tailcut.builder.bounds.tracking import OneHot, Tracking

    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    module.eval()
    call = in_order(module, [tensor.name for tensor in trials.inputs])
    tracking = Tracking(named)
    places: list[tuple[str, int]] = []
    with torch.inference_mode():
        tensors = []
        for tensor in trials.inputs:
            array = np.array(trials.rows[tensor.name])
            columns = trials.columns(tensor)
            origins = torch.arange(len(places), len(places) + columns).reshape((1, *array.shape[1:]))
            places += [(tensor.name, column) for column in range(columns)]
            tensors.append(torch.from_numpy(array))
            tracking.follow(tensors[-1], origins.expand(array.shape).clone())
        try:
            with tracking, OneHot(tracking):
                call(*tensors)
        except Exception:
            # The user's code, on tensors that are followed: what does not run so is not analysed.
            return Seen()
    free = any(-1 in tensor.shape[1:] for tensor in trials.inputs)
    found = Seen(lengths=tracking.sliced, sizes={reached.size for reached in tracking.reached})
    for reached in tracking.reached:
        if not reached.origins:
            found.lengths.add(reached.size)
        elif reached.named or not (free or reached.size == trials.count):
            # Of a table that the module makes anew, the size may be that of a free dimension.
            for origin, shift in reached.origins.items():
                name, column = places[origin]
                index = Index(
                    input=name, column=column, size=reached.size, table=reached.table, wraps=reached.wraps, shift=shift
                )
                found.indices.append(index)
    return found
