"""scikit-learn models as they are stored: the same bits, the same bytes each time, and no type that nobody trusts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.build_kit import live, made

from tailcut.builder.sources import sklearn as source
from tailcut.errors import ArtifactError, ManifestError
from tailcut.models.runtimes.base import OpenOptions, OpenSpec
from tailcut.models.runtimes.skops import SkopsRuntime, load, unknown_types

R = np.random.default_rng(5)
ROWS = R.normal(size=(120, 6)).astype(np.float32)
CLASS = (ROWS[:, 0] + 0.2 * R.normal(size=120) > 0).astype(int)


def double(x: Any) -> Any:
    """A function of the user's."""
    return 2 * x


class Own(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type information
    """A step of the user's."""

    def fit(self, x: Any, y: Any = None) -> Own:
        """Nothing to learn."""
        self.n_features_in_ = x.shape[1]
        return self

    def transform(self, x: Any) -> Any:
        """Another matrix."""
        return double(x)


MODELS: dict[str, Callable[[], Any]] = {
    "hist gradient boosting": lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
    "forest": lambda: RandomForestClassifier(3, random_state=0),
    "stacking": lambda: StackingClassifier(
        [("a", LogisticRegression()), ("b", RandomForestClassifier(2, random_state=0))], cv=2
    ),
    "selection by a function of scikit-learn": lambda: make_pipeline(SelectKBest(f_classif, k=2), LogisticRegression()),
    "Gaussian process": lambda: GaussianProcessClassifier(random_state=0),
    "ufunc": lambda: make_pipeline(FunctionTransformer(np.tanh), StandardScaler(), LogisticRegression()),
    "regression": Ridge,
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_stored_model_gives_the_same_bits(tmp_path: Path, kind: str) -> None:
    model = MODELS[kind]().fit(ROWS, CLASS)
    found, work = made(tmp_path, live(model), {"x": ROWS})
    assert (found.runtime, found.live_code, found.found.not_stored) == ("skops", (), "")
    live(None)  # the user's object is gone
    given = work.open(work.base).run({"x": ROWS}, ["y"])["y"]
    own = model.predict_proba(ROWS)[:, 1] if hasattr(model, "predict_proba") else model.predict(ROWS)
    np.testing.assert_array_equal(given, own.astype(np.float32))
    with ZipFile(found.path) as archive:
        assert {Path(name).suffix for name in archive.namelist()} <= {".json", ".npy", ".npz", ".bin"}


STORE = """
import hashlib, sys
from pathlib import Path
import joblib, numpy as np
from tailcut.builder.sources import sklearn as source
x = np.ones((4, 6), np.float32)
for name, model in joblib.load(sys.argv[1]).items():
    file = Path(sys.argv[1]).with_suffix(".skops")
    assert source.store(model, {"x": x}, lambda each: np.asarray(each.predict(x)), file, {}) == ([], "")
    print(hashlib.sha256(file.read_bytes()).hexdigest())
"""


def test_the_same_model_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """So that a second build of it is the same version."""
    import joblib

    joblib.dump({name: make().fit(ROWS, CLASS) for name, make in MODELS.items()}, tmp_path / "models.joblib")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", STORE, str(tmp_path / "models.joblib")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == len(MODELS)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Own(), f"holds {__name__}:Own; to store it, name your own types in model.trusted"),
        (FunctionTransformer(double), f"holds {__name__}:double; to store it, name your own types in model.trusted"),
        (FunctionTransformer(lambda x: x + 1), "lambda"),
        (FunctionTransformer(np.nan_to_num), "nan_to_num; to store it, name"),
    ],
)
def test_unknown_types_are_named_and_not_stored(tmp_path: Path, step: Any, said: str) -> None:
    model = make_pipeline(step, LogisticRegression()).fit(ROWS, CLASS)
    found, _ = made(tmp_path, live(model), {"x": ROWS})
    assert found.runtime == "sklearn"
    assert said in found.found.not_stored
    assert found.live_code


def answers(model: Any) -> Any:
    return model.predict_proba(ROWS)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A stored model with a type of the user's."""
    model = make_pipeline(Own(), LogisticRegression()).fit(ROWS, CLASS)
    file = tmp_path / "own.skops"
    code, why = source.store(model, {"x": ROWS[:8]}, answers, file, {f"{__name__}.Own": lambda: Own})
    assert (code, why) == ([f"{__name__}:Own"], "")
    return file


def test_a_trusted_type_is_imported_and_an_unknown_one_never(own: Path) -> None:
    imported = []
    loaded = load(own, {f"{__name__}.Own": lambda: imported.append("Own"), "other.Type": lambda: 1 / 0})
    assert imported == ["Own"], "what other models need stays where it is"
    assert answers(loaded).shape == (120, 2)
    with pytest.raises(ArtifactError, match=f"holds {__name__}:Own, which scikit-learn does not define") as refused:
        load(own, {})
    assert refused.value.hint.endswith(f'model.trusted = ["{__name__}:Own"]')

    def gone() -> object:
        raise ManifestError("there is no module my_features")

    with pytest.raises(ManifestError, match="my_features"):
        load(own, {f"{__name__}.Own": gone})


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "numpy.memmap",
        "sklearn.datasets._base.load_files",
        "sklearn.base.warnings",
        "sklearn.utils.validation.warnings",
        "sklearn.no_such_module.Type",
        "lightgbm.basic.Dataset",
        "joblib.memory.Memory",
    ],
)
def test_what_does_more_than_compute_is_unknown(name: str) -> None:
    assert unknown_types([name, "sklearn.tree._tree.Tree"]) == [name]


def test_a_forged_file_runs_nothing(own: Path, tmp_path: Path) -> None:
    """A function of another module in place of a trusted one: it is named before anything is made."""
    file = tmp_path / "forged.skops"
    rewrite(own, file, lambda text: text.replace(f'"{__name__}"', '"os"').replace('"Own"', '"system"'))
    with pytest.raises(ArtifactError, match="holds os:system"):
        load(file, {f"{__name__}.Own": lambda: Own})


def test_a_model_that_answers_otherwise_than_it_did_is_not_served(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, CLASS)
    found, work = made(tmp_path, live(model), {"x": ROWS})
    file, held = tmp_path / "changed.skops", work.manifest.deployment.model
    with ZipFile(found.path) as archive:
        intercept = next(name for name in archive.namelist() if is_like(archive.read(name), model[-1].intercept_))
    rewrite(Path(found.path), file, lambda text: text, {intercept: saved(model[-1].intercept_ + 1)})
    with pytest.raises(ArtifactError, match="the stored model gives another Pipeline than the build had") as refused:
        SkopsRuntime(OpenSpec("sklearn", "skops", file, held.inputs, held.outputs, {}), OpenOptions(threads=1))
    assert "library versions" in refused.value.hint


def rewrite(old: Path, new: Path, edit: Callable[[str], str], members: dict[str, bytes] | None = None) -> None:
    """Copy an archive with an edited description and other members."""
    with ZipFile(old) as given, ZipFile(new, "w") as made_:
        for name in given.namelist():
            content = (members or {}).get(name, given.read(name))
            made_.writestr(name, edit(content.decode()) if name == "schema.json" else content)
        assert json.loads(given.read("schema.json"))


def is_like(content: bytes, array: Any) -> bool:
    if not content.startswith(b"\x93NUMPY"):
        return False
    found = np.load(BytesIO(content))
    return found.shape == array.shape and np.array_equal(found, array)


def saved(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_opening_imports_no_torch() -> None:
    code = (
        "import sys; from tailcut.models.runtimes.skops import load_skops; load_skops(); "
        "assert 'sklearn' in sys.modules; assert 'torch' not in sys.modules; assert len(sys.meta_path) < 6"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
