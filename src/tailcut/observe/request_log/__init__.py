"""The request log: a sample of requests with inputs, answers and timings, written to files and read back."""

from tailcut.observe.request_log.capture import Capture, Sampler
from tailcut.observe.request_log.reader import is_request_log, read_log
from tailcut.observe.request_log.record import LoggedTensor, Record
from tailcut.observe.request_log.sink import RequestLog

__all__ = ["Capture", "LoggedTensor", "Record", "RequestLog", "Sampler", "is_request_log", "read_log"]
