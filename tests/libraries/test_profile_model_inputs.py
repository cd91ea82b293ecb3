"""What an application hands to its models is kept: the outermost call of each, whatever it is called with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("torch")

SCRIPT = """
import json, sys
from tailcut.profiler.recording.model_inputs import install_input_hooks, model_inputs
install_input_hooks()
import numpy as np, pandas as pd, torch, onnxruntime
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rows = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 2.0], [0.0, 7.0]])
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(pd.DataFrame(rows, columns=["a", "b"]), [0, 1, 0, 1])
model_inputs.take()
model.predict_proba(pd.DataFrame({"a": [1.0, None], "b": [2, 3]}).fillna(0.5))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)
    def forward(self, x, scale=None):
        return self.inner(x)

Net()(torch.tensor([[1.0, 2.0]], requires_grad=True), scale=torch.tensor([3]))
session = onnxruntime.InferenceSession(sys.argv[1])
session.run(None, {"x": np.ones((1, 4), np.float32)})
try:
    model.predict("nonsense")
except Exception as error:
    failed = type(error).__name__
calls = model_inputs.take()
assert model_inputs.take() == ()
print(json.dumps([[one.model, one.named, one.placed] for one in calls] + [failed]))
"""


def test_the_outermost_call_of_each_library_is_kept(tmp_path: Path) -> None:
    """Given a Pipeline, a module and a session; then one call each, in order, and errors stay the application's."""
    from tests.models.graphs import linear

    words = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(linear(tmp_path / "model.onnx"))]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    pipeline, net, session, failed = json.loads(run.stdout)
    assert pipeline == ["Pipeline.predict_proba", {"a": [1.0, 0.5], "b": [2, 3]}, []]
    assert net == ["Net.__call__", {"scale": [3]}, [[[1.0, 2.0]]]]
    assert session == ["InferenceSession.run", {"x": [[1.0] * 4]}, []]
    assert failed == "ValueError"
