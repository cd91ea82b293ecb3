"""Which stage a request was in when it failed."""

from __future__ import annotations

from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, HookError, TailcutError


def unfinished_stage(ns: list[int], error: TailcutError) -> Stage:
    """Return the stage that a failed request was in, so that the time since its last lap is not lost.

    Args:
        ns: nanoseconds of each stage that has ended.
    """
    for stage in (Stage.RECEIVE, Stage.VALIDATE, Stage.ADMIT):
        if not ns[stage]:
            return stage
    if type(error) in {HookError, BadRequest}:
        return Stage.POSTPROCESS if ns[Stage.INFER] else Stage.PREPROCESS
    return Stage.ENCODE
