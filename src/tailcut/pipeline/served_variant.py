"""A loaded variant as requests meet it."""

from __future__ import annotations

from collections.abc import Callable

from tailcut.common.validation import InputSpec
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.models.value_limits import PathLimits


class ServedVariant:
    """One loaded variant of a deployment. A request keeps the one that admitted it to its end.

    Args:
        name, version: of the variant and its version in the registry; in replies.
        deployment_version: hash of everything that an answer of this variant depends on, but for the models that its
            features come from; part of cache keys, then called ``own_version``.
        features_version: adds the versions of models that compute features; None where there are none.
        dispatcher: its queue and executors.
        limits: of the values of requests; None where the form of the inputs is all that counts.
        input_specs: forms of the inputs, where there are no limits.
        outputs: names of all outputs: the tuple of the pipeline, since requests for all of them share batches.
        rows_alone: whether each row runs alone, because rows of a batch influence each other.
        needs_entities: whether batches carry a hash of each row's entity, because its drift is watched.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        name: str = "",
        version: str = "",
        deployment_version: bytes,
        features_version: Callable[[bytes], bytes] | None = None,
        limits: PathLimits | None = None,
        input_specs: tuple[InputSpec, ...] = (),
        outputs: tuple[str, ...] = (),
        rows_alone: bool = False,
        needs_entities: bool = False,
    ) -> None:
        self.dispatcher = dispatcher
        self.name = name
        self.version = version
        self.limits = limits
        self.specs = input_specs if limits is None else limits.specs
        self.outputs = outputs
        self.rows_alone = rows_alone
        self.needs_entities = needs_entities
        self.own_version = deployment_version
        self._features_version = features_version

    @property
    def deployment_version(self) -> bytes:
        """The hash, with the current versions of the models that features come from."""
        if self._features_version is None:
            return self.own_version
        return self._features_version(self.own_version)
