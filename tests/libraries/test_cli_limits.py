"""``tailcut init --from-model`` writes the limits that a model proves."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tailcut.builder.bounds.ranges import FLOAT32
from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.manifest import Deployment, load

Command = Callable[..., tuple[int, str, str]]

SHOPS = """
    import numpy as np
    import torch
    from tailcut.builder import Holdout

    class Shops(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shops, self.days = torch.nn.Embedding(50, 4), torch.nn.Embedding(7, 4)

        def forward(self, shop, packed):
            print("a module that prints")
            return (self.shops(shop) + self.days(packed[:, 1].long())).sum(dim=1)

    def build():
        return Shops()

    def holdout():
        packed = np.stack([np.linspace(18, 93, 20), np.arange(20) % 7], axis=1)
        return Holdout(inputs={"shop": np.arange(20), "packed": packed})
"""
TABLE = """
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def build():
        frame = pandas.DataFrame({"city": ["a", "b", "c", "a"] * 5, "age": [18.0, 93.0, 40.5, 20.0] * 5})
        frame.assign(label=1).to_csv("rows.csv", index=False)
        steps = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
        return make_pipeline(steps, LogisticRegression()).fit(frame, [0, 1, 1, 0] * 5)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return ran


def module(name: str, code: str) -> str:
    """Write a module of the user's in the present folder; its name is the test's own, as modules stay imported."""
    Path(f"{name}.py").write_text(textwrap.dedent(code))
    return name


def written(folder: str = ".") -> Deployment:
    return load(Path(folder), environment={}).deployment


SLO_FIRST = "first set [slo]: p95 or p99 (the latency limit) and rate (requests per second)\n"


def save_graph(batch: str | int = "rows") -> None:
    """An embedding of 50 shops in ONNX, whose Gather counts negative indices from the end."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["shops", "shop"], ["y"])],
        "g",
        [helper.make_tensor_value_info("shop", TensorProto.INT64, [batch])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch])],
        [numpy_helper.from_array(np.arange(50, dtype=np.float32), "shops")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "m.onnx")


def test_init_of_a_module_fills_in_tensors_and_limits(command: Command) -> None:
    name = module("limits_of_shops", SHOPS)
    code, out, err = command("init", "--from-model", f"{name}:build", "--holdout", f"{name}:holdout")
    assert (code, out) == (ExitCode.OK, "a module that prints\n" * out.count("a module") + "tailcut.toml\n"), err
    assert err.endswith(f"{SLO_FIRST}then fill in name, the outputs' names, and run: tailcut build && tailcut check\n")
    model = written().model
    assert written().holdout.source == f"{name}:holdout"
    assert [(one.name, one.datatype, one.shape, one.min, one.max) for one in model.inputs] == [
        ("shop", "INT64", (-1,), 0, 49),
        ("packed", "FP32", (-1, 2), None, None),
    ]
    assert [(one.name, one.datatype, one.shape) for one in model.outputs] == [("output", "FP32", (-1,))]
    lines = Path("tailcut.toml").read_text().splitlines()
    assert "# limits below: embedding shops.weight has 50 rows" in lines
    (column,) = (line for line in lines if line.startswith("# column 1: "))
    assert column.endswith("(embedding days.weight has 7 rows); found by the build, enforced in serving")


def test_init_of_a_pipeline_reads_the_columns_of_a_file(command: Command) -> None:
    name = module("limits_of_table", TABLE)
    code, _, err = command("init", "--from-model", f"{name}:build", "--holdout", "rows.csv")
    assert code == ExitCode.OK, err
    fill_in = "name, the outputs' names, holdout.labels (the label column)"
    assert f"{SLO_FIRST}then fill in {fill_in}, and run: tailcut build" in err
    assert ".onnx" not in err
    model = written().model
    assert [(one.name, one.datatype, one.values) for one in model.inputs] == [
        ("city", "BYTES", ("a", "b", "c")),
        ("age", "FP64", ()),
    ]
    assert [one.name for one in model.outputs] == ["probability"]


def test_init_of_a_graph_needs_no_holdout(command: Command) -> None:
    save_graph()
    Path("sub").mkdir()
    code, _, err = command("init", "sub", "--from-model", "m.onnx")
    assert code == ExitCode.OK, err
    assert f"{SLO_FIRST}then fill in name, [holdout] (labelled rows, from a function or a file), and run: " in err
    assert 'to serve an .onnx file unchanged, without holdout and build: [serve] variant = "source"\n' in err
    model = written("sub").model
    assert model.source == "../m.onnx"
    assert [(one.name, one.datatype, one.shape, one.min, one.max) for one in model.inputs] == [
        ("shop", "INT64", (-1,), 0, 49)
    ]
    assert command("check", "--manifest", "sub", "--set", "serve.variant=source")[0] == ExitCode.OK


def test_init_says_what_it_lacks(command: Command) -> None:
    name = module("limits_of_nothing", SHOPS)
    code, _, err = command("init", "--from-model", f"{name}:build")
    assert code == ExitCode.FAILED
    assert "gave a Shops, which does not describe its input tensors" in err
    assert "--holdout module:function" in err
    assert not Path("tailcut.toml").exists()
    assert command("init", "--holdout", "rows.csv")[0] == ExitCode.USAGE
    Path("bad.onnx").write_bytes(b"no model")
    assert "cannot open" in command("init", "--from-model", "bad.onnx")[2]
    Path("model.joblib").write_bytes(b"")
    assert "write a function that loads and returns it" in command("init", "--from-model", "model.joblib")[2]


def test_init_of_a_model_that_was_not_fitted_says_so(command: Command) -> None:
    Path("rows.csv").write_text("age,city\n1,a\n")
    name = module("limits_of_unfitted", "from sklearn.linear_model import LogisticRegression as build\n")
    code, _, err = command("init", "--from-model", f"{name}:build", "--holdout", "rows.csv")
    assert code == ExitCode.FAILED
    assert "does not say which it takes" in err
    assert "fit the model on a DataFrame" in err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("return 3", "gave a int, expected a tailcut.build.Holdout"),
        ("return Holdout(inputs={'shop': np.array([77]), 'packed': np.ones((1, 2))})", "IndexError"),
        ("return Holdout(inputs={'shop': np.array([1j]), 'packed': np.ones((1, 2))})", "not a datatype"),
    ],
)
def test_init_refuses_a_holdout_that_the_model_cannot_take(code: str, said: str, command: Command) -> None:
    head, _, _ = textwrap.dedent(SHOPS).partition("def holdout():")
    name = module(f"limits_of_{abs(hash(code))}", f"{head}def holdout():\n    {code}\n")
    failed, _, err = command("init", "--from-model", f"{name}:build", "--holdout", f"{name}:holdout")
    assert failed == ExitCode.FAILED
    assert said in err


BOOSTERS = """
    import numpy as np
    import pandas
    import xgboost
    from tailcut.builder import Holdout

    ROWS = pandas.DataFrame({{"age": np.linspace(18, 93, 60), "shop": np.arange(60) % 3.0}})

    def build():
        rows = xgboost.DMatrix(ROWS, label=ROWS.shop)
        return xgboost.train({{"objective": "{objective}", "num_class": {classes}, "nthread": 1}}, rows, 2)

    def holdout():
        return Holdout(inputs={inputs})
"""
WIDE = '{"x": ROWS[["age", "shop"]].to_numpy()}'
"""Both columns in one tensor without names: they come in the booster's order."""


@pytest.mark.parametrize(
    ("objective", "classes", "inputs", "output"),
    [
        ("reg:squarederror", 0, '{"shop": ROWS.shop.to_numpy(), "age": ROWS.age.to_numpy()}', (-1,)),
        ("multi:softmax", 3, WIDE, (-1, 3)),
    ],
)
def test_init_calls_a_booster_as_the_build_does(
    objective: str, classes: int, inputs: str, output: tuple[int, ...], command: Command
) -> None:
    pytest.importorskip("xgboost")
    code = BOOSTERS.format(objective=objective, classes=classes, inputs=inputs)
    name = module(f"limits_of_booster_{classes}", code)
    failed, _, err = command("init", "--from-model", f"{name}:build", "--holdout", f"{name}:holdout")
    assert failed == ExitCode.OK, err
    assert [one.shape for one in written().model.outputs] == [output]
    manifest = load(Path(), environment={})
    section = manifest.deployment.model
    limits = {(one.name, one.min, one.max) for one in section.inputs}
    assert limits == {(one.name, -FLOAT32, FLOAT32) for one in section.inputs}


GAPS = """
    import pandas
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def build():
        frame = pandas.DataFrame({"city": ["a", "b", None, "a"] * 5})
        frame.to_csv("rows.csv", index=False)
        return make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame.fillna(float("nan")), [0, 1, 1, 0] * 5)
"""


def test_init_takes_a_missing_text_as_the_build_does(command: Command) -> None:
    name = module("limits_of_gaps", GAPS)
    code, _, err = command("init", "--from-model", f"{name}:build", "--holdout", "rows.csv")
    assert code == ExitCode.OK, err
    (city,) = written().model.inputs
    assert (city.datatype, city.allow_nan, city.values) == ("BYTES", True, ("a", "b", ""))


COLUMNS = """
    import decimal
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def build():
        frame = pandas.DataFrame({"zip": ["00501", "10001", "None"] * 8, "member": [True, None, False] * 8})
        frame.to_csv("rows.csv", index=False)
        price = [decimal.Decimal("1.5"), decimal.Decimal(2), decimal.Decimal(3)] * 8
        frame = frame.assign(member=frame["member"].astype("boolean"), price=price)
        frame.to_parquet("rows.parquet")
        frame = frame.assign(member=[1.0, float("nan"), 0.0] * 8, price=frame["price"].astype(float))
        names = {columns}
        prepare = make_column_transformer((OneHotEncoder(), ["zip"]), (SimpleImputer(), names[1:]))
        return make_pipeline(prepare, LogisticRegression()).fit(frame[names], [0, 1, 1] * 8)
"""


@pytest.mark.parametrize(("suffix", "columns"), [("csv", ["zip", "member"]), ("parquet", ["zip", "member", "price"])])
def test_init_sees_zip_codes_as_text_and_objects_of_numbers_as_numbers(
    command: Command, suffix: str, columns: list[str]
) -> None:
    name = module(f"limits_of_{suffix}_columns", COLUMNS.replace("{columns}", repr(columns)))
    code, _, err = command("init", "--from-model", f"{name}:build", "--holdout", f"rows.{suffix}")
    assert code == ExitCode.OK, err
    model = written().model
    found = {one.name: (one.datatype, one.allow_nan) for one in model.inputs}
    known = {"zip": ("BYTES", False), "member": ("FP64", True), "price": ("FP64", False)}
    assert found == {name: known[name] for name in columns}
    assert next(one for one in model.inputs if one.name == "zip").values == ("00501", "10001", "None")


def test_init_takes_whole_numbers_with_leading_zeros_as_text(command: Command) -> None:
    code = COLUMNS.replace("{columns}", "['zip', 'member']").replace('"None"]', '"02134"]')
    name = module("limits_of_zip_codes", code)
    done, _, err = command("init", "--from-model", f"{name}:build", "--holdout", "rows.csv")
    assert done == ExitCode.OK, err
    assert written().model.inputs[0].datatype == "BYTES"


def test_a_file_with_a_fixed_batch_is_named_as_such(command: Command) -> None:
    save_graph(1)
    code, _, err = command("init", "--from-model", "m.onnx")
    assert code != ExitCode.OK
    assert "'shop' is [1]: its batch is fixed to 1" in err
    assert "hint: export the model with a free first dimension" in err
    Path("tailcut.toml").write_text(MANIFEST.format(source="m.onnx", limits=""))
    code, out, err = command("check")
    assert code != ExitCode.OK
    assert "its batch is fixed to 1" in out + err
    assert "export the model with a free first dimension" in out + err


MANIFEST = """
name = "shops"
[model]
source = "{source}"
[[model.inputs]]
name = "shop"
datatype = "INT64"
{limits}
[[model.outputs]]
name = "y"
[serve]
variant = "source"
"""


HEADS = """
    import numpy as np
    import torch
    from tailcut.builder import Holdout

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kind, self.price = torch.nn.Linear(3, 4), torch.nn.Linear(3, 1)

        def forward(self, features):
            return torch.softmax(self.kind(features), 1), self.price(features).squeeze(1)

    def build():
        return Heads().eval()

    def holdout():
        return Holdout(inputs={"features": np.ones((9, 3), np.float32)})
"""


def test_init_of_a_module_with_two_heads_asks_which_one_the_labels_belong_to(command: Command) -> None:
    name = module("limits_of_heads", HEADS)
    code, _, err = command("init", "--from-model", f"{name}:build", "--holdout", f"{name}:holdout")
    assert code == ExitCode.OK, err
    assert [(one.name, one.shape) for one in written().model.outputs] == [("output_0", (-1, 4)), ("output_1", (-1,))]
    assert "the outputs' names, holdout.output (the output to judge by the labels; default: the first), and run" in err


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ('{"kind": features, "price": features}', "forward of Heads returned a dict of 2 (kind, price)"),
        ("features, None", "forward of Heads returned 2 outputs (Tensor, NoneType)"),
    ],
)
def test_init_of_a_module_that_returns_no_tensors_says_what_to_return(
    returned: str, said: str, command: Command
) -> None:
    code = HEADS.replace("torch.softmax(self.kind(features), 1), self.price(features).squeeze(1)", returned)
    name = module(f"limits_of_{abs(hash(returned))}", code)
    failed, _, err = command("init", "--from-model", f"{name}:build", "--holdout", f"{name}:holdout")
    assert failed == ExitCode.FAILED
    assert said in err
    assert "hint: return a tensor, or a tuple with a tensor for each of model.outputs in their order" in err
