"""Message classes from descriptors, in a pool of tailcut's own.

protobuf keeps one pool for the whole process and refuses a second file that has the same package and messages. A
process with tailcut may well hold another implementation of the same protocol: a hook that calls Triton with
tritonclient, or grpcio-health-checking in the app that tailcut is mounted in.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_POOL: Any = descriptor_pool.DescriptorPool()


def add(file: bytes) -> dict[str, Any]:
    """Add a serialized FileDescriptorProto; return what its module holds: descriptor, messages and enums by name."""
    descriptor = _POOL.AddSerializedFile(file)
    found: dict[str, Any] = {"DESCRIPTOR": descriptor}
    for name, message in descriptor.message_types_by_name.items():
        found[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        found[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        found.update({value.name: value.number for value in enum.values})
    return found
