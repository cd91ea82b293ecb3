"""The statistical gate: whether a variant's quality stands within its budget, with confidence, on paired rows."""

from tailcut.gate.agreement import compare
from tailcut.gate.evidence import OwnRows
from tailcut.gate.judging import are_decisions, judge
from tailcut.gate.paired import rows_needed
from tailcut.gate.verdict import Agreement, MetricVerdict, Outcome, QualityVerdict, SliceVerdict

__all__ = [
    "Agreement",
    "MetricVerdict",
    "Outcome",
    "OwnRows",
    "QualityVerdict",
    "SliceVerdict",
    "are_decisions",
    "compare",
    "judge",
    "rows_needed",
]
