"""The part of the manifest that says what goes in and out of the model. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tailcut.manifest.section import Section

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]


class TensorSpec(Section, frozen=True, kw_only=True):
    """One input or output tensor of the model. Dimension -1 is the batch (first) or a free dimension."""

    name: Annotated[str, Meta(description="name of the tensor in the model", examples=["features"])]
    datatype: Annotated[Datatype, Meta(description="Open Inference Protocol datatype")] = "FP32"
    shape: Annotated[
        tuple[int, ...],
        Meta(description="shape; the first dimension is the batch and is -1", min_length=1),
    ] = (-1,)
    columns: Annotated[
        tuple[str, ...],
        Meta(description="feature columns that fill this tensor, in order, if there is no preprocess hook"),
    ] = ()
    allow_nan: Annotated[bool, Meta(description="allow NaN and infinity in this tensor")] = False
    min: Annotated[
        float | int | None, Meta(description="minimum value of an input; a request below it is refused", examples=[0])
    ] = None
    max: Annotated[
        float | int | None, Meta(description="maximum value of an input; a request above it is refused", examples=[1])
    ] = None
    values: Annotated[
        tuple[int | float | str | bool, ...],
        Meta(description="allowed values of an input; empty: any", examples=[(0, 1)]),
    ] = ()
    max_length: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="maximum number of characters of a text (BYTES) input, or maximum size of a free dimension",
            examples=[512],
        ),
    ] = None


LIMITS = ("min", "max", "values", "max_length")
"""Limits of an input's values."""

OF_INPUTS = ("columns", *LIMITS)
"""Keys of an input that an output does not have."""


class Field(Section, frozen=True, kw_only=True):
    """Limits of one field, wherever it occurs: in an entity, in a client's row, in a feature group's row."""

    name: Annotated[str, Meta(description="name of the field", examples=["temperature"])]
    type: Annotated[
        Literal["any", "integer", "number", "text", "boolean"],
        Meta(
            description="type of its values; a whole float counts as an integer, a boolean is neither integer nor "
            "number"
        ),
    ] = "any"
    min: Annotated[float | int | None, Meta(description="minimum value", examples=[-60])] = None
    max: Annotated[float | int | None, Meta(description="maximum value", examples=[60])] = None
    values: Annotated[
        tuple[int | float | str | bool, ...],
        Meta(description="allowed values; empty: any", examples=[(0, 10, 20)]),
    ] = ()
    max_length: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="maximum number of characters of a text, or of elements of a list", examples=[100]),
    ] = None


class Model(Section, frozen=True, kw_only=True):
    """Where the source model is and what goes in and out of it."""

    source: Annotated[
        str,
        Meta(
            description="'package.module:callable' that returns a torch.nn.Module, or a scikit-learn, LightGBM or "
            "XGBoost model; or a path to an .onnx file or a Hugging Face folder",
            examples=["my_model:build"],
        ),
    ]
    trusted: Annotated[
        tuple[str, ...],
        Meta(
            description="'package.module:Name' of each class and function that a stored model may contain, beside "
            "those of scikit-learn, LightGBM and XGBoost; opening the model runs their code",
            examples=[("my_features:Ratio",)],
        ),
    ] = ()
    inputs: Annotated[
        tuple[TensorSpec, ...],
        Meta(description="input tensors", min_length=1, examples=[{"name": "features", "shape": [-1, 64]}]),
    ]
    outputs: Annotated[
        tuple[TensorSpec, ...], Meta(description="output tensors", min_length=1, examples=[{"name": "probability"}])
    ]
    fields: Annotated[tuple[Field, ...], Meta(description="limits of fields of entities, rows and feature groups")] = ()
    preprocess: Annotated[
        str,
        Meta(
            description="'package.module:callable', feature rows (list of dicts) -> dict of input arrays; "
            "a plain function, called from several threads at once",
            examples=["my_model:preprocess"],
        ),
    ] = ""
    postprocess: Annotated[
        str,
        Meta(
            description="'package.module:callable', dict of output arrays -> list with one JSON value per row; "
            "a plain function, called from several threads at once",
            examples=["my_model:postprocess"],
        ),
    ] = ""
    files: Annotated[
        tuple[str, ...],
        Meta(
            description="files that hooks and feature functions read, or patterns ('tables/*.csv', '**/*.json'), "
            "relative to the manifest. A changed file gives a new deployment version, so caches do not return old "
            "answers",
            examples=[("vocabulary.txt",)],
        ),
    ] = ()

    @property
    def reads_any_field(self) -> bool:
        """True where a hook or a folder's tokenizer fills the inputs, so that any field of a row may be read."""
        return bool(self.preprocess) or (":" not in self.source and not self.source.endswith(".onnx"))
