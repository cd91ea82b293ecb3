"""An application that knows nothing of tailcut, as a FastAPI tutorial has it: SQLAlchemy, sessions by a dependency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.integration.planting import record_briefly

from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Stage

pytestmark = pytest.mark.integration

MAIN = """
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("sqlite:///heroes.db", connect_args={"check_same_thread": False})

class Base(DeclarativeBase):
    pass

class Hero(Base):
    __tablename__ = "hero"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))

class HeroOut(BaseModel):
    id: int
    name: str

def get_session() -> Iterator[Session]:
    with Session(engine) as session:
        yield session

app = FastAPI()

Base.metadata.create_all(engine)
with Session(engine) as first:
    first.add_all([Hero(id=number, name=f"hero {number}") for number in range(1, 200)])
    first.commit()

@app.get("/heroes")
def read_heroes(session: Annotated[Session, Depends(get_session)], offset: int = 0) -> list[HeroOut]:
    heroes = session.scalars(select(Hero).offset(offset).limit(100)).all()
    if not heroes:
        raise HTTPException(status_code=404, detail="no heroes")
    return [HeroOut(id=hero.id, name=hero.name) for hero in heroes]
"""


def test_a_tutorial_application_is_profiled_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    recording = record_briefly(
        PilotPlan(target="main:app", rate=20.0, duration_s=1.5, warmup_s=0.5, directory=str(tmp_path))
    )
    assert len(recording.requests) >= 20
    assert {one.status for one in recording.requests} == {200}
    assert {one.path for one in recording.requests} == {"/heroes"}  # the only route that takes GET
    assert not [note for note in recording.notes if "hooked" in note]
    assert {"sqlalchemy", "sqlite3", "fastapi"} <= set(recording.pilot.hooks)
    for one in recording.requests:
        queries = [span for span in one.spans if span.stage is Stage.SQL and span.label.startswith("SELECT")]
        assert queries
        assert all(span.label for span in one.spans if span.stage is Stage.SQL)
        assert all("FROM hero LIMIT ? OFFSET ?" in span.label for span in queries)
        assert {span.place.partition(":")[0] for span in queries} == {"main.py"}
        code = {span.label: span.place for span in one.spans if span.stage is Stage.CODE}
        assert {"read_heroes", "get_session", "dependency get_session"} <= set(code)
        assert all(place.startswith("main.py:") for place in code.values())
        assert all(span.parent < number for number, span in enumerate(one.spans))
    found = attribute(recording)
    assert (found.stage_ns.sum(axis=1) == found.flat.done_ns - found.flat.intended_ns).all()
    took_ns = found.flat.left_ns - found.flat.entered_ns
    seen = took_ns > 0
    assert seen.mean() > 0.5, "beside other work some are not matched"
    unknown = found.stage_ns[seen, STAGES.index(Stage.UNATTRIBUTED)] / took_ns[seen]
    assert np.median(unknown) < 0.05
