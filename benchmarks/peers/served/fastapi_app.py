"""FastAPI on uvicorn, no batching: what most pilots are.

https://fastapi.tiangolo.com/async/: a handler that computes and waits for nobody is ``async def``; one that blocks for
long is ``def`` and runs in the thread pool ($PEER_BLOCKS says that the model does).
https://fastapi.tiangolo.com/deployment/server-workers/: one worker per core, and there is one core.
https://www.uvicorn.org/settings/: uvloop and httptools, which ``uvicorn[standard]`` brings; no access log.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from model import Model  # type: ignore[import-not-found]  # beside this file, on the peer's own path
from pydantic import BaseModel

app = FastAPI()
model = Model()


class Request(BaseModel):
    x: list[float]


def _predict(request: Request) -> dict[str, Any]:
    return {"y": model.run([request.x])[0].tolist()}


async def _predict_at_once(request: Request) -> dict[str, Any]:
    return _predict(request)


app.post("/predict")(_predict if os.environ.get("PEER_BLOCKS") else _predict_at_once)


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning",
        access_log=False,
    )  # fmt: skip
