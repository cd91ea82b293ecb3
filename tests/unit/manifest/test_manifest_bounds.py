"""Limits in the manifest: what is read, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.manifest_kit import TOML

from tailcut.errors import ManifestError
from tailcut.manifest import Deployment, load
from tailcut.manifest.keys import to_plain
from tailcut.manifest.loading import with_overrides

INPUT = 'columns = ["temperature", "wind"]\n'


def loaded(
    folder: Path, limits: str = "", fields: str = "", model: str = "", overrides: tuple[str, ...] = ()
) -> Deployment:
    text = TOML.replace(INPUT, f"{INPUT}{limits}\n", 1).replace("[slo]", f"{fields}\n[slo]")
    (folder / "tailcut.toml").write_text(text.replace('source = "flight:build"', f'source = "flight:build"\n{model}'))
    return load(folder, environment={}, overrides=overrides).deployment


def refusal(folder: Path, limits: str = "", fields: str = "", model: str = "") -> str:
    with pytest.raises(ManifestError) as caught:
        loaded(folder, limits, fields, model)
    assert caught.value.hint
    return str(caught.value)


def test_limits_are_read_as_they_were_written(tmp_path: Path) -> None:
    fields = '[[model.fields]]\nname = "airport"\ntype = "text"\nmax_length = 4\nvalues = ["JFK", "LHR"]\n'
    model = loaded(tmp_path, "min = -60\nmax = 60.5", fields).model
    x, field = model.inputs[0], model.fields[0]
    assert (x.min, type(x.min), x.max, x.values, x.max_length) == (-60, int, 60.5, (), None)
    assert (field.type, field.values, field.max_length, field.min) == ("text", ("JFK", "LHR"), 4, None)


def test_what_is_not_set_is_left_out_of_plain_values_and_read_again(tmp_path: Path) -> None:
    deployment = loaded(tmp_path, "max = 9007199254740993")
    plain = to_plain(deployment.model)
    assert plain["inputs"][0]["max"] == 2**53 + 1
    assert {"min", "max_length"}.isdisjoint(plain["inputs"][0])
    again = with_overrides(
        load(tmp_path, environment={}), ["model.inputs.x.min=-1.5", "model.inputs.x.values=[0, 2.5]"]
    )
    assert (again.deployment.model.inputs[0].min, again.deployment.model.inputs[0].values) == (-1.5, (0, 2.5))


def test_flags_and_variables_set_limits_of_fields(tmp_path: Path) -> None:
    loaded(tmp_path, fields='[[model.fields]]\nname = "wind"\n')
    environment = {"TAILCUT_MODEL__FIELDS__WIND__MAX": "9.5", "TAILCUT_MODEL__INPUTS__X__MIN": "-3"}
    model = load(tmp_path, environment=environment, overrides=["model.fields.wind.type=number"]).deployment.model
    assert (model.fields[0].max, model.fields[0].type, model.inputs[0].min) == (9.5, "number", -3)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("min = 2\nmax = 1", "model.inputs.x.min: 2 is above max = 1"),
        ("min = 0\nvalues = [1, -1]", "model.inputs.x.values: -1 is below min = 0"),
        ("max = 0\nvalues = [1]", "model.inputs.x.values: 1 is above max = 0"),
        ("min = nan", "model.inputs.x.min: nan is not a limit"),
        ("max = inf", "model.inputs.x.max: inf is not a limit"),
        ("values = [nan]", "model.inputs.x.values: nan cannot be an allowed value"),
        ('values = ["a"]', "model.inputs.x.values: 'a' is not allowed: values must be numbers"),
        ("values = [true]", "model.inputs.x.values: True is not allowed: values must be numbers"),
        ("max_length = 3", "model.inputs.x.max_length: 3, but shape [-1, 2] has no free dimension"),
        ("max_length = 0", "model.inputs.x.max_length: 0 is not an integer of at least 1"),
        ('min = "0"', 'model.inputs.x.min: "0" is not a number'),
        ("values = [[1]]", "model.inputs.x.values: [[1]] is not an array of numbers, strings or booleans"),
        ('datatype = "INT8"\nmin = 0.5', "model.inputs.x.min: 0.5, but its values are whole numbers"),
        ('datatype = "UINT8"\nvalues = [256]', "model.inputs.x.values: 256 is outside the range of UINT8, 0 to 255"),
        (
            'datatype = "INT16"\nvalues = [32768]',
            "model.inputs.x.values: 32768 is outside the range of INT16, -32768 to 32767",
        ),
        (
            'datatype = "INT64"\nvalues = [1.5]',
            "model.inputs.x.values: 1.5 is not allowed: values must be whole numbers",
        ),
        ('datatype = "BYTES"\nmin = 0', "model.inputs.x.min: 0, but its values are texts"),
        ('datatype = "BYTES"\nvalues = [1]', "model.inputs.x.values: 1 is not allowed: values must be texts"),
        ('datatype = "BYTES"\nvalues = ["abc"]\nmax_length = 2', "has 3 characters, more than max_length = 2"),
        ('datatype = "BOOL"\nmax = 1', "model.inputs.x.max: 1, but its values are true or false"),
        ('datatype = "BOOL"\nvalues = [1]', "model.inputs.x.values: 1 is not allowed: values must be true or false"),
    ],
)
def test_limits_of_an_input_that_cannot_work(tmp_path: Path, limits: str, said: str) -> None:
    assert said in refusal(tmp_path, limits)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            'name = "wnd"',
            "model.fields.wnd: no entity, row or feature group has this field\n\nhint: did you mean wind?",
        ),
        ('name = "zzzzz"', "hint: the fields are: airport, temperature, wind"),
        ('name = "wind"\nmin = 1\nmax = 0', "model.fields.wind.min: 1 is above max = 0"),
        ('name = "wind"\ntype = "text"\nmin = 0', "model.fields.wind.min: 0, but its values are texts"),
        ('name = "wind"\ntype = "integer"\nmax = 0.5', "model.fields.wind.max: 0.5, but its values are whole numbers"),
        (
            'name = "wind"\ntype = "boolean"\nvalues = [0]',
            "model.fields.wind.values: 0 is not allowed: values must be true or false",
        ),
        ('name = "wind"\nvalues = ["a"]\nmin = 0', "'a' is a text, but min = 0 is for numbers"),
        ('name = "wind"\ntype = "int"', 'model.fields.wind.type: "int" is not one of'),
        ('name = "wind"\n[[model.fields]]\nname = "wind"', "model.fields: wind is listed twice"),
    ],
)
def test_limits_of_a_field_that_cannot_work(tmp_path: Path, field: str, said: str) -> None:
    assert said in refusal(tmp_path, fields=f"[[model.fields]]\n{field}\n")


def test_a_hook_may_read_any_field(tmp_path: Path) -> None:
    fields = '[[model.fields]]\nname = "history"\nmax_length = 3\n'
    assert "model.fields.history" in refusal(tmp_path, fields=fields)
    assert loaded(tmp_path, fields=fields, model='preprocess = "flight:rows"').model.fields[0].max_length == 3


def test_an_output_has_no_columns(tmp_path: Path) -> None:
    """They would be read as the names of its classes, and nothing would come of it."""
    (tmp_path / "tailcut.toml").write_text(TOML.replace('name = "p"\n', 'name = "p"\ncolumns = ["no", "yes"]\n'))
    with pytest.raises(ManifestError, match=r"model\.outputs\.p\.columns: an output has no columns") as refused:
        load(tmp_path, environment={})
    assert "holdout.classes" in refused.value.hint


def test_an_output_has_no_limits(tmp_path: Path) -> None:
    text = TOML.replace('name = "p"\n', 'name = "p"\nmax = 1\n')
    (tmp_path / "tailcut.toml").write_text(text)
    with pytest.raises(ManifestError, match=r"model\.outputs\.p\.max: an output has no limits"):
        load(tmp_path, environment={})


def test_a_limit_that_the_datatype_can_only_round_is_taken(tmp_path: Path) -> None:
    assert loaded(tmp_path, "max = 0.1\nvalues = [0.1]").model.inputs[0].max == 0.1
    assert loaded(tmp_path, 'datatype = "INT64"\nmax = 49.0').model.inputs[0].max == 49
