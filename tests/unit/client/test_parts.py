"""The parts of the client that need no socket: tensors, replies as they come in, tries, errors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.client import Client
from tailcut.client.base import Attempts
from tailcut.client.failures import ConnectionFailed, UnexpectedReply, error_of
from tailcut.client.tensors import BINARY_HEADER, decode, encode
from tailcut.client.wire import Received, WireRequest, address_of, checked_headers
from tailcut.common.tensors import NUMPY_OF, Array
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferTimeout, NotReady, Shed, TailcutError
from tailcut.protocol.open_inference.binary import BinaryReply
from tailcut.protocol.open_inference.codec import InferenceCodec

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "BYTES": ["ü", ""],
    **{name: [0, 1] for name in NUMPY_OF if "INT" in name},
    **{name: [0.5, -1.5] for name in ("FP16", "FP32", "FP64")},
}


def array(datatype: str) -> Array:
    found = np.empty((2, 1), NUMPY_OF[datatype])
    found[:, 0] = VALUES[datatype]
    return found


@pytest.mark.parametrize("datatype", list(NUMPY_OF))
def test_the_server_reads_what_the_client_writes_and_the_other_way_round(datatype: str) -> None:
    sent = array(datatype)
    codec = InferenceCodec("m", "1", [InputSpec("x", datatype, (-1, 1))], ("y", "z"), max_rows=8)
    headers, body = encode({"x": sent}, None)
    inference = codec.decode(body, headers[BINARY_HEADER])
    assert inference.inputs["x"].dtype == sent.dtype
    assert inference.inputs["x"].tolist() == sent.tolist()
    reply = codec.encode(inference, {"y": sent, "z": sent[:1]})
    assert isinstance(reply, BinaryReply)
    found = decode(dict(reply.headers), reply.body)
    assert {name: each.dtype for name, each in found.items()} == {"y": sent.dtype, "z": sent.dtype}
    assert found["y"].tolist() == sent.tolist()
    assert found["z"].tolist() == sent[:1].tolist()
    assert all(each.flags.writeable for each in found.values())


def test_outputs_in_json_are_read_too() -> None:
    body = msgspec.json.encode({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}]})
    found = decode({}, body)
    assert found["y"].dtype == np.float32
    assert found["y"].tolist() == [[1.5, 2.0]]


def test_text_arrays_of_any_kind_are_bytes() -> None:
    for words in (np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array(["a", b"bc"], object)):
        headers, body = encode({"t": words}, ["y"])
        assert body[int(headers[BINARY_HEADER]) :] == b"\x01\0\0\0a\x02\0\0\0bc"


@pytest.mark.parametrize("cut", [b"\x05\0\0\0ab", b"\x01\0", b"\xff\xff\xff\xff"])
def test_elements_that_end_beyond_the_reply_are_refused(cut: bytes) -> None:
    tensor = {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(cut)}}
    header = msgspec.json.encode({"outputs": [tensor]})
    with pytest.raises(ValueError, match=r"output 't' (ends|has)"):
        decode({BINARY_HEADER: str(len(header))}, header + cut)


def test_a_shape_that_claims_more_elements_than_came_takes_no_memory() -> None:
    tensor = {"name": "t", "datatype": "BYTES", "shape": [10**15], "parameters": {"binary_data_size": 4}}
    header = msgspec.json.encode({"outputs": [tensor]})
    with pytest.raises(ValueError, match="4 bytes for 1000000000000000 BYTES elements"):
        decode({BINARY_HEADER: str(len(header))}, header + b"\0\0\0\0")


# -- Replies ---------------------------------------------------------------------------------------------------------

BODY = b'{"predictions": [1, 2, 3]}'
WHOLE = [
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nX-Tailcut-Variant: v\r\n\r\n%s" % (len(BODY), BODY),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx-tailcut-variant: v\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:]),
]


@given(st.sampled_from(WHOLE), st.lists(st.integers(1, 40), max_size=8))
def test_a_reply_is_the_same_however_it_is_cut(whole: bytes, cuts: list[int]) -> None:
    received = Received()
    for cut in cuts:
        if whole[cut:]:
            received.feed(whole[:cut])
            whole = whole[cut:]
            assert not received.done
    received.feed(whole)
    assert received.done
    assert received.reusable
    assert (received.status, received.body) == (200, BODY)
    assert received.headers["x-tailcut-variant"] == "v"


def test_a_reply_that_asks_to_close_is_not_reused() -> None:
    received = Received()
    received.feed(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert received.done
    assert not received.reusable


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", WHOLE[0][:-1], WHOLE[1][:-1]])
def test_an_end_before_the_end(start: bytes) -> None:
    received = Received()
    if start:
        received.feed(start)
    with pytest.raises(ConnectionFailed) as caught:
        received.feed(b"")
    assert caught.value.sent


def test_a_request_is_one_of_http() -> None:
    address = address_of("http://[::1]:8700/below", None)
    assert str(address) == "[::1]:8700"
    raw = WireRequest("POST", "/p", {"a": "b"}, b"{}").encoded(address, 0.25)
    head = (
        b"POST /below/p HTTP/1.1\r\nhost: [::1]:8700\r\na: b\r\nx-tailcut-timeout-ms: 250.000\r\ncontent-length: 2\r\n"
    )
    assert raw == head + b"\r\n{}"
    assert b"x-tailcut-timeout-ms" not in WireRequest("POST", "/p", {}, b"").encoded(address, None)
    assert address_of("http://h", None).port == 80
    assert address_of("https://h", None).tls is not None


# -- Errors and tries ------------------------------------------------------------------------------------------------


def test_errors_come_back_as_what_they_were() -> None:
    for kind, status in ((NotReady, 503), (InferTimeout, 504), (BadRequest, 400)):
        body = msgspec.json.encode({"error": "e", "code": kind.code, "hint": "h"})
        found = error_of(status, {}, body)
        assert type(found) is kind
        assert (found.message, found.hint, found.status, found.code) == ("e", "h", status, kind.code)
    shed = error_of(429, {"retry-after": "3"}, b'{"error": "e", "code": "shed"}')
    assert isinstance(shed, Shed)
    assert shed.retry_after_s == 3.0
    unready = error_of(503, {"retry-after": "2"}, b'{"error": "e", "code": "not_ready"}')
    assert isinstance(unready, NotReady)
    assert unready.retry_after_s == 2.0


@given(st.integers(400, 599), st.binary(max_size=60))
def test_any_body_is_an_error_of_the_status(status: int, body: bytes) -> None:
    found = error_of(status, {"retry-after": "soon"}, body)
    assert isinstance(found, TailcutError)
    if isinstance(found, UnexpectedReply):
        assert found.status == status


def shed(seconds: float) -> Shed:
    return Shed("full", retry_after_s=seconds)


@pytest.mark.parametrize(
    ("error", "timeout_s", "retries", "wait_s"),
    [
        (shed(1), 5.0, 2, 1.0),
        (shed(5), 5.0, 2, None),
        (shed(0), 5.0, 2, None),
        (shed(1), None, 2, None),
        (shed(1), 5.0, 0, None),
        (ConnectionFailed("c", sent=False), None, 2, 0.05),
        (ConnectionFailed("c", sent=False), 0.04, 2, None),
        (ConnectionFailed("c", sent=True), 5.0, 2, None),
        (BadRequest("b"), 5.0, 2, None),
        (NotReady("n"), 5.0, 2, None),
        (NotReady("n", retry_after_s=1), 5.0, 2, 1.0),
        (NotReady("n", retry_after_s=1), None, 2, None),
    ],
)
def test_what_is_tried_again(error: TailcutError, timeout_s: float | None, retries: int, wait_s: float | None) -> None:
    assert Attempts(10.0, timeout_s, 65.0, retries).retry_in(error, 10.0) == wait_s


def test_tries_are_counted_and_wait_longer_each_time() -> None:
    attempts = Attempts(0.0, 10.0, 65.0, 3)
    refused = ConnectionFailed("c", sent=False)
    assert [attempts.retry_in(refused, 1.0) for _ in range(4)] == [0.05, 0.1, 0.2, None]
    assert attempts.timeout_s(4.0) == 6.0
    assert Attempts(0.0, None, 65.0, 3).timeout_s(4.0) is None


@pytest.mark.parametrize(
    "name", ["Content-Length", "transfer-encoding", "host", "Accept-Encoding", "a b", "x:y", "", "x\r"]
)
def test_headers_that_would_change_the_request_are_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        checked_headers({name: "3"})


def test_arrays_without_a_name_are_refused_with_how_they_are_given() -> None:
    with Client("http://127.0.0.1:1", model="m") as client, pytest.raises(BadRequest) as caught:
        client.infer(np.zeros((1, 2)))  # type: ignore[arg-type]
    assert caught.value.message == "infer takes arrays by input name, not ndarray"
    assert caught.value.hint == 'infer({"x": array})'


def test_other_headers_are_sent() -> None:
    assert checked_headers({"X-Tenant": "acme é"}) == {"x-tenant": "acme é"}


# -- Rows ------------------------------------------------------------------------------------------------------------


def rows_of(*values: Any) -> Any:
    with Client("http://h", model="m") as client:
        return client._predicting([{"a": value} for value in values], None).body


def test_rows_are_written_as_the_server_reads_them() -> None:
    values = [np.nan, np.inf, np.float32("-inf"), b"a", np.array([np.inf, 1.0]), np.str_("b"), 2**64 - 1, -0.0]
    texts = ["null", "1e999", "-1e999", '"a"', "[1e999,1.0]", '"b"', "18446744073709551615", "-0.0"]
    assert rows_of(*values).decode() == '{"rows":[' + ",".join(f'{{"a":{text}}}' for text in texts) + "]}"


def test_rows_that_json_has_not_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for wrong in (b"\xff", "\ud800", object(), 1j, endless):
        with pytest.raises(BadRequest, match="cannot be written as JSON"):
            rows_of(wrong)
    with pytest.raises(BadRequest, match="holds text that is not valid Unicode"):
        encode({"x": np.array(["\ud800"], object)}, None)


def test_infinity_and_nan_in_json_answers_are_read() -> None:
    tensor = '{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[1e999,null,-1e999]}]}'
    np.testing.assert_array_equal(decode({}, tensor.encode())["y"], np.array([np.inf, np.nan, -np.inf], np.float32))
