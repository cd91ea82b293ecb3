"""An application with one slow step in each of its models; the test copies this file and profiles it as it is.

Each path has a twin, ``.../without``, from which that step has been removed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

NUMBERS, WORDS = [f"n{place}" for place in range(6)], ["colour", "size"]
generator = np.random.default_rng(0)
table = pd.DataFrame({name: generator.normal(size=400) for name in NUMBERS})
for word in WORDS:
    table[word] = generator.choice(["a", "b", "c"], 400)
labels = (table.n0 + (table.colour == "a") > 0.3).astype(int)


def add_ratios(rows: Any) -> Any:
    """Compute row by row, in Python, what takes some 30 ms."""
    total = 0.0
    for number in range(400_000):
        total += number % 7 * 0.5
    return rows.assign(n0=rows.n0 + 0.0 * total)


def pipeline(*, slow: bool) -> Pipeline:
    columns = ColumnTransformer([("words", OneHotEncoder(), WORDS), ("numbers", StandardScaler(), NUMBERS)])
    first = [("ratios", FunctionTransformer(add_ratios))] if slow else []
    forest = RandomForestClassifier(20, random_state=0, n_jobs=1)
    return Pipeline([*first, ("columns", columns), ("forest", forest)]).fit(table, labels)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class TwoHeaded(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.one, self.two = encoder, torch.nn.Linear(512, 2), torch.nn.Linear(512, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        return self.one(hidden), self.two(hidden)


torch.set_num_threads(1)
models = {slow: pipeline(slow=slow) for slow in (True, False)}
networks = {True: TwoHeaded(Encoder()).eval(), False: TwoHeaded(torch.nn.Identity()).eval()}
kernel = Nystroem(n_components=300, random_state=0).fit(generator.normal(size=(400, 60)))
embed = torch.nn.Linear(60, 4).eval()


class Body(BaseModel):
    n: float = 0.0


app = FastAPI()


def row_of(body: Body) -> Any:
    return pd.DataFrame([{**dict.fromkeys(NUMBERS, body.n), "colour": "a", "size": "b"}])


def answer(rows: Any, slow: bool) -> float:
    return float(models[slow].predict_proba(rows)[0, 1])


def hook(body: Body, slow: bool) -> Any:
    """Prepare what the model gets, as a hook does: with a transformer that is called by hand."""
    rows = np.full((500, 60), body.n)
    return kernel.transform(rows) if slow else rows


@app.post("/pipeline")
def of_pipeline(body: Body) -> float:
    return answer(row_of(body), True)


@app.post("/pipeline/without")
def of_pipeline_without(body: Body) -> float:
    return answer(row_of(body), False)


@app.post("/network")
def of_network(body: Body) -> int:
    with torch.inference_mode():
        return len(networks[True](torch.full((32, 512), body.n)))


@app.post("/network/without")
def of_network_without(body: Body) -> int:
    with torch.inference_mode():
        return len(networks[False](torch.full((32, 512), body.n)))


@app.post("/hook")
def of_hook(body: Body) -> int:
    found = hook(body, True)
    with torch.inference_mode():
        return len(found) + len(embed(torch.zeros(1, 60)))


@app.post("/hook/without")
def of_hook_without(body: Body) -> int:
    found = hook(body, False)
    with torch.inference_mode():
        return len(found) + len(embed(torch.zeros(1, 60)))
