"""Every error of tailcut: code, HTTP status, whose fault it is, and the way out.

Each message says what was wrong, with the value and the limit, and ``hint`` the way out. ``code`` is for programs.
gRPC status names follow https://grpc.io/docs/guides/status-codes/.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["client", "server", "operator"]


class TailcutError(Exception):
    """The root of all errors that a user of tailcut can meet.

    Args:
        message: what happened, with the value and the limit; a server answers its clients with it.
        hint: the way out; empty only where there is none.
        detail: what the user's own code said, which may hold anything: never for clients of a server.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    fault: ClassVar[Fault] = "server"

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    @property
    def explained(self) -> str:
        """The message with its detail."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    def __str__(self) -> str:
        return f"{self.explained}\n\nhint: {self.hint}" if self.hint else self.explained


# -- The operator's: configuration, artifacts, start-up --------------------------------------------------------------


class ManifestError(TailcutError):
    """The manifest, an environment variable or a flag is wrong."""

    code = "bad_manifest"
    fault: ClassVar[Fault] = "operator"


class ArtifactError(TailcutError):
    """A registry artifact is missing, corrupt, truncated or not for this machine."""

    code = "bad_artifact"
    fault: ClassVar[Fault] = "operator"


class NotServable(ArtifactError):
    """An artifact is whole, but this machine or the manifest's folder lacks something that serving it needs."""


class NotInRegistry(ArtifactError):
    """The registry has no model, version or variant of the name that was given."""


class BuildError(TailcutError):
    """A variant could not be built."""

    code = "build_failed"
    fault: ClassVar[Fault] = "operator"


class DoesNotApply(BuildError):
    """A recipe has nothing to do on this model; it shows when the model is read."""

    code = "does_not_apply"


class StartError(TailcutError):
    """The server could not start (port taken, dependency missing, model does not load)."""

    code = "start_failed"
    fault: ClassVar[Fault] = "operator"


class MissingExtra(StartError):
    """An optional package that this configuration needs is not installed."""

    code = "missing_extra"


class LoadTestError(TailcutError):
    """A load test could not run as asked."""

    code = "load_failed"
    fault: ClassVar[Fault] = "operator"


class ProfileError(TailcutError):
    """An application, a deployment or a URL could not be profiled as asked."""

    code = "profile_failed"
    fault: ClassVar[Fault] = "operator"


class StoreError(TailcutError):
    """An embedded store (the history) is missing, unreadable, or of another version or program."""

    code = "bad_store"
    fault: ClassVar[Fault] = "operator"


# -- The client's: the request is wrong ------------------------------------------------------------------------------


class ClientError(TailcutError):
    """The root of these."""

    fault: ClassVar[Fault] = "client"


class BadRequest(ClientError):
    """The request is malformed, or an input has the wrong name, dtype, shape or value."""

    code = "bad_request"
    status = 400
    grpc_status = "INVALID_ARGUMENT"


class WrongFields(BadRequest):
    """A row lacks a field, or has one that nothing reads, whatever its values are."""


class UnknownEntity(BadRequest):
    """An entity that no feature source knows."""

    code = "unknown_entity"
    status = 404
    grpc_status = "NOT_FOUND"


class NotFound(ClientError):
    """No such model, version or path."""

    code = "not_found"
    status = 404
    grpc_status = "NOT_FOUND"


class MethodNotAllowed(ClientError):
    """The path exists, the method does not. Carries the methods that do, for ``Allow``."""

    code = "method_not_allowed"
    status = 405
    grpc_status = "UNIMPLEMENTED"

    def __init__(self, message: str, *, hint: str = "", allowed: str = "") -> None:
        super().__init__(message, hint=hint)
        self.allowed = allowed


class RequestTimeout(ClientError):
    """The request's body had not arrived by its deadline."""

    code = "request_timeout"
    status = 408
    grpc_status = "DEADLINE_EXCEEDED"


class TooLarge(ClientError):
    """The body or the batch is larger than the limit."""

    code = "too_large"
    status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class HeadTooLarge(TooLarge):
    """The request's head is larger than the limit."""

    code = "head_too_large"
    status = 431


class UnsupportedEncoding(ClientError):
    """The body is compressed in a way that the server does not undo."""

    code = "unsupported_encoding"
    status = 415
    grpc_status = "INVALID_ARGUMENT"


class Unauthorized(ClientError):
    """No token, or one that is not known."""

    code = "unauthorized"
    status = 401
    grpc_status = "UNAUTHENTICATED"


class Forbidden(ClientError):
    """Not allowed, whoever asks: the management interface is off, or the token is for something else."""

    code = "forbidden"
    status = 403
    grpc_status = "PERMISSION_DENIED"


class ClientGone(ClientError):
    """The client closed the connection before its answer was ready; its work was dropped."""

    code = "client_gone"
    status = 499
    grpc_status = "CANCELLED"


# -- The server's: the request was right, the answer could not be made in time ---------------------------------------


class Shed(TailcutError):
    """Refused at admission: the queue is full. Carries seconds for ``Retry-After``."""

    code = "shed"
    status = 429
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class NotReady(TailcutError):
    """Not ready: loading, draining, or no executor is alive. Seconds for ``Retry-After``; 0 where nobody knows."""

    code = "not_ready"
    status = 503
    grpc_status = "UNAVAILABLE"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ExecutorLost(TailcutError):
    """The process or thread that computed the request died or hung, and there was no time to compute it again."""

    code = "executor_lost"
    status = 503
    grpc_status = "UNAVAILABLE"


class FeatureUnavailable(TailcutError):
    """A feature group could not be fetched and no value within its stale limit is left."""

    code = "feature_unavailable"
    status = 503
    grpc_status = "UNAVAILABLE"

    def __init__(self, message: str, *, hint: str = "", detail: str = "", group: str = "", source: str = "") -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.group, self.source = group, source


class FeatureError(TailcutError):
    """A feature group asks its model for what that does not take or give, whatever the key is."""

    code = "feature_failed"
    fault: ClassVar[Fault] = "operator"

    def __init__(self, message: str, *, hint: str = "", detail: str = "", group: str = "") -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.group = group


class DeadlineExceeded(TailcutError):
    """The deadline passed before the answer was ready. The base of the phase-specific ones."""

    code = "deadline_exceeded"
    status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class FeatureTimeout(DeadlineExceeded):
    """The deadline passed while features were being fetched."""

    code = "feature_timeout"


class HookTimeout(DeadlineExceeded):
    """The deadline passed while a preprocess or postprocess hook ran in a thread, or waited for one."""

    code = "hook_timeout"


class QueueTimeout(DeadlineExceeded):
    """The deadline passed while the request waited for an executor; it was never computed."""

    code = "queue_timeout"


class InferTimeout(DeadlineExceeded):
    """The deadline passed while the batch was running."""

    code = "infer_timeout"


class InferenceError(TailcutError):
    """The runtime raised while it ran the batch; only this batch is affected."""

    code = "inference_failed"


class OutputsError(InferenceError):
    """The model does not give the outputs that the manifest names, whatever the rows are."""


class HookError(TailcutError):
    """A user's preprocess or postprocess hook raised or returned something of the wrong form."""

    code = "hook_failed"
