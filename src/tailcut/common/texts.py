"""Elements of BYTES tensors: text inside of the server, UTF-8 on the wire. No I/O."""

from __future__ import annotations

from tailcut.common.tensors import Array
from tailcut.errors import BadRequest, InferenceError

MISSING_TEXT = ""
"""In a BYTES input with ``allow_nan``: a missing value, null in JSON, which an estimator gets as NaN."""


def text_of(value: bytes, name: str = "") -> str:
    """Return an element of a BYTES input as the model gets it: text, as from JSON.

    Args:
        name: of the input, for the error.

    Raises:
        BadRequest: it is no UTF-8. onnxruntime would make "b'...'" of bytes, and no other runtime takes either.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        what = f"an element of input {name!r}" if name else "an element of a BYTES input"
        raise BadRequest(
            f"{what} is no UTF-8 text: {error.reason} at its byte {error.start}",
            hint="send UTF-8 text; encode other bytes as base64 or hex",
        ) from error


def bytes_of(value: object) -> bytes:
    """Return an element of a BYTES output.

    Raises:
        InferenceError: it is neither text nor bytes, or text with half a surrogate pair.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise no_unicode(error) from error
    return _bytes(value)


def texts_of(array: Array) -> list[str]:
    """Return the elements of a BYTES output, flat, as text, which is all that JSON has.

    Raises:
        InferenceError: an element is neither text nor UTF-8 bytes.
    """
    return [value if type(value) is str else _text(value) for value in array.ravel().tolist()]


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise InferenceError(
            f"the model returned bytes that are no UTF-8, so no text for JSON: {error.reason} at byte {error.start}",
            hint="request this output raw (binary_data_output = true, or gRPC), or make the model return text",
        ) from error


def no_unicode(error: UnicodeEncodeError) -> InferenceError:
    """Return the error for a text output with half a surrogate pair, which no protocol can carry."""
    return InferenceError(
        f"the model returned text that is no Unicode: {error.reason} at character {error.start}",
        hint="make the model return text without surrogates, or bytes",
    )


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    raise InferenceError(
        f"the model returned a {type(value).__name__} in an output of BYTES", hint="make the model return text or bytes"
    )
