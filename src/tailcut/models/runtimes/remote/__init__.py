"""A runtime in a process of its own: what crashes, hangs or leaks there costs one batch and nothing else.

    parent: RemoteRuntime --(socket pair: small typed messages; shared memory: tensors)--> child: any other runtime

Nothing is pickled in either direction, and the child gets no more than the variant, the manifest and its tensors.
"""

from tailcut.models.runtimes.remote.client import RemoteRuntime

__all__ = ["RemoteRuntime"]
