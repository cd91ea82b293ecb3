"""Models that are stored: built twice, rolled back, verified, and served with the code that made them deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.serving import Served
from tests.scale import ALL
from tests.stored_kit import EXPECTED, add_all, add_versions, ids, run_tailcut, write_model

from tailcut.manifest import load
from tailcut.models.variant_loader import open_variant
from tailcut.registry import Registry
from tailcut.serving.deployment_loader import find_variant

pytestmark = pytest.mark.integration

COLUMNS = """
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
def columns(encoder):
    return ColumnTransformer([("k", encoder, ["k"]), ("n", StandardScaler(), ["a", "b"])])
"""

STORED: dict[str, tuple[bool, str]] = {
    "hist gradient boosting with categories": (
        True,
        COLUMNS
        + """
from sklearn.ensemble import HistGradientBoostingClassifier
def build():
    trees = HistGradientBoostingClassifier(max_iter=5, categorical_features=[0], random_state=0)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    return Pipeline([("c", columns(codes)), ("m", trees)]).fit(*train())
""",
    ),
    "one-hot encoder and LightGBM": (
        True,
        COLUMNS
        + """
import lightgbm
def build():
    trees = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, random_state=0)
    pipeline = Pipeline([("c", columns(OneHotEncoder(handle_unknown="ignore"))), ("m", trees)])
    return pipeline.set_output(transform="default").fit(*train())
""",
    ),
    "isotonic calibration": (
        False,
        """
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
def build():
    return CalibratedClassifierCV(RandomForestClassifier(5, random_state=0), method="isotonic", cv=2).fit(*train())
""",
    ),
    "XGBoost behind a scaler": (
        False,
        """
import xgboost
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
def build():
    return make_pipeline(StandardScaler(), xgboost.XGBClassifier(n_estimators=5, random_state=0)).fit(*train())
""",
    ),
    "nearest neighbours of splines": (
        False,
        """
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer
def build():
    return make_pipeline(SplineTransformer(), KNeighborsClassifier(algorithm="ball_tree")).fit(*train())
""",
    ),
}


if not ALL:
    STORED = dict(list(STORED.items())[:2])

LIBRARIES = ("lightgbm", "pandas", "skops.io", "sklearn.ensemble", "sklearn.pipeline", "xgboost")
OWN_FOLDERS = [("own", "a class of a module"), ("trusted", "a function of a module")]
if ALL:
    OWN_FOLDERS += [("own", "a function of a module"), ("trusted", "a class of a module")]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model, with two versions in its registry."""
    base = tmp_path_factory.mktemp("stored")
    folders = [write_model(base / kind, body, frame=frame) for kind, (frame, body) in STORED.items()]
    for group, kind in OWN_FOLDERS:
        imported, step, own = OWN_STEPS[kind]
        more = TRUSTED.format(own=own) if group == "trusted" else ""
        folders.append(write_model(base / group / kind, OWN.format(imported=imported, step=step), more=more))
        (folders[-1] / "my_features.py").write_text(FEATURES)
    add_all({folder: (1, 2) for folder in folders}, *LIBRARIES)
    return base


def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "m")


def answers(folder: Path) -> np.ndarray:
    """Open what is promoted as serving does, and run the rows that the version's object answered."""
    manifest = load(folder / "tailcut.toml")
    warm = open_variant(manifest, find_variant(manifest))
    try:
        return warm.runtimes[0].run(rows_of(folder), ["p"])["p"]
    finally:
        warm.close()


def rows_of(folder: Path) -> dict[str, Any]:
    with np.load(folder / "rows.npz") as kept:
        return {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in kept.items()}


@pytest.mark.parametrize("kind", list(STORED))
def test_a_retrained_model_rolls_back_to_the_stored_one(stored: Path, tmp_path: Path, kind: str) -> None:
    folder = copied(stored / kind, tmp_path)
    first, second = ids(folder)
    assert first != second
    old, new = (np.load(folder / EXPECTED.format(version=version)) for version in (first, second))
    assert not np.array_equal(old, new)
    (folder / "my_model.py").unlink()
    np.testing.assert_array_equal(answers(folder), new)
    code, said = run_tailcut(folder, "registry", "rollback")
    assert (code, said.split()[-3:]) == (0, ["stored", first, "sklearn"])
    np.testing.assert_array_equal(answers(folder), old)


@pytest.mark.parametrize(
    "kind", [each if place == 0 else pytest.param(each, marks=pytest.mark.whole) for place, each in enumerate(STORED)]
)
def test_both_versions_are_whole_without_the_module(stored: Path, tmp_path: Path, kind: str) -> None:
    folder = copied(stored / kind, tmp_path)
    (folder / "my_model.py").unlink()
    code, said = run_tailcut(folder, "registry", "verify")
    assert code == 0, said
    assert [line.split()[3] for line in said.splitlines() if ": opened, " in line].count("sklearn") == 2
    assert "my_model" not in run_tailcut(folder, "registry", "list")[1]


def test_a_stored_model_is_served_without_its_module(stored: Path, tmp_path: Path) -> None:
    folder = copied(stored / "one-hot encoder and LightGBM", tmp_path)
    version = ids(folder)[-1]
    (folder / "my_model.py").unlink()
    rows = rows_of(folder)
    with Served(folder, prepared=True) as served:
        inputs = [
            {"name": name, "datatype": "BYTES" if array.dtype.hasobject else "FP64", "shape": [len(array)]}
            | {"data": array.tolist()}
            for name, array in rows.items()
        ]
        status, found = served.post("/v2/models/stored/infer", {"inputs": inputs})
    assert status == 200, found
    expected = np.load(folder / EXPECTED.format(version=version))
    np.testing.assert_array_equal(np.float32(found["outputs"][0]["data"]), expected)


OWN = """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
{imported}
def build():
    return make_pipeline({step}, LogisticRegression()).fit(*train())
"""

OWN_STEPS = {
    "a class of a module": ("from my_features import Ratio", "Ratio()", "my_features:Ratio"),
    "a function of a module": ("from my_features import ratio", "FunctionTransformer(ratio)", "my_features:ratio"),
}

FEATURES = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
def ratio(x):
    return np.column_stack([x, x[:, 0] / (1 + np.abs(x[:, 1]))])
class Ratio(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        self.n_features_in_ = x.shape[1]
        return self
    def transform(self, x):
        return ratio(x)
    def __sklearn_is_fitted__(self):
        return True
"""


TRUSTED = 'trusted = ["{own}"]'


@pytest.mark.parametrize("kind", [kind for group, kind in OWN_FOLDERS if group == "own"])
def test_a_step_of_ones_own_needs_live_code(stored: Path, tmp_path: Path, kind: str) -> None:
    own = OWN_STEPS[kind][2]
    folder = copied(stored / "own" / kind, tmp_path)
    first, _ = ids(folder)
    code, said = run_tailcut(folder, "registry", "show")
    assert "sklearn needs live code my_model:build: not stored" in said
    assert f"it holds {own}; to store it, name your own types in model.trusted" in said
    assert run_tailcut(folder, "registry", "verify")[0] == 0
    code, said = run_tailcut(folder, "registry", "rollback")
    assert code == 3, said  # model.source gives the second model now
    assert f"sklearn of {first}: variant 'sklearn'" in said
    assert "needs live code my_model:build" in said
    assert "sklearn (promoted; needs my_model:build)" in run_tailcut(folder, "registry", "list")[1]


@pytest.mark.parametrize("kind", [kind for group, kind in OWN_FOLDERS if group == "trusted"])
def test_a_trusted_step_is_stored_and_needs_its_module_alone(stored: Path, tmp_path: Path, kind: str) -> None:
    own = OWN_STEPS[kind][2]
    folder = copied(stored / "trusted" / kind, tmp_path)
    first, _ = ids(folder)
    (folder / "my_model.py").unlink()
    assert run_tailcut(folder, "registry", "rollback")[0] == 0
    np.testing.assert_array_equal(answers(folder), np.load(folder / EXPECTED.format(version=first)))
    rows = json.loads(run_tailcut(folder, "registry", "list", "--json")[1])
    assert rows[1]["live_code"] == {"sklearn": [own]}
    (folder / "my_features.py").rename(folder / "my_old_features.py")
    code, said = run_tailcut(folder, "registry", "verify")
    assert code == 1
    assert f"needs live code {own}, and cannot be opened with the code here" in said
    assert "there is no module my_features" in said
    manifest = (folder / "tailcut.toml").read_text()
    (folder / "tailcut.toml").write_text(manifest.replace(TRUSTED.format(own=own), ""))
    assert f"holds {own}, which scikit-learn does not define" in run_tailcut(folder, "registry", "verify")[1]


BUILD = """
[quality]
budget = { log_loss = 0.05 }
[slo]
p95 = "1s"
rate = 30
[build]
recipes = ["onnx"]
rounds = 0
"""


def test_a_whole_build_stores_the_model_without_skl2onnx(tmp_path: Path) -> None:
    """Build, retrain, build, roll back, delete the module: both versions can be served.

    The first version is made without a whole build, but in `make test-all`.
    """
    frame, body = STORED["hist gradient boosting with categories"]
    folder = write_model(tmp_path / "m", body, frame=frame, end=BUILD)
    versions = []
    for number in (1, 2):
        if number == 1 and not ALL:
            add_versions(folder, number)
        else:
            (folder / "v").write_text(str(number))
            code, said = run_tailcut(folder, "build", without=("skl2onnx",))
            assert code == 0, said
        versions.append(Registry(folder / ".tailcut/registry").version("stored"))
    (folder / "my_model.py").unlink()
    assert [version.variants["sklearn"].runtime for version in versions] == ["skops", "skops"]
    assert [version.variants["sklearn"].live_code for version in versions] == [(), ()]
    code, said = run_tailcut(folder, "registry", "promote", "sklearn", "--version", versions[0].id)
    assert (code, said.split()[-2:]) == (0, [versions[0].id, "sklearn"]), said
    code, said = run_tailcut(folder, "registry", "rollback")
    assert (code, said.split()[-2]) == (0, versions[1].id), said
    code, said = run_tailcut(folder, "registry", "verify", without=("skl2onnx",))
    assert code == 0, said
    assert said.count(" sklearn ") == 2
