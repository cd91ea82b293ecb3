"""The example's pure parts: point-in-time features, serving hooks, model, clock, traffic."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flight_risk import clock, serving, tables
from flight_risk.columns import CATEGORICAL, NUMERIC, PLAIN, RAW, numeric_of
from flight_risk.offline import HOUR_S, Offline
from flight_risk.settings import LEAD_S
from flight_risk.traffic import ACTIVE_S, board

START = 1380600000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLIGHT_RISK_HOME", str(tmp_path))
    monkeypatch.delenv(clock.REPLAY, raising=False)
    serving.vocabulary_path.cache_clear()
    clock.anchor.cache_clear()
    yield tmp_path
    serving.vocabulary_path.cache_clear()
    clock.anchor.cache_clear()


def made_up_tables(count: int = 400, seed: int = 3) -> dict[str, Any]:
    """Three days of flights between few airports; some cancelled, some diverted, some hours late."""
    draw = np.random.default_rng(seed)
    sched = np.sort(START + draw.integers(0, 3 * 86400 // 60, count) * 60)
    delay = np.round(draw.exponential(30, count) - 10)
    block = draw.integers(60, 300, count)
    arr_delay = delay + draw.integers(-20, 20, count)
    cancelled, diverted = draw.random(count) < 0.05, draw.random(count) < 0.03
    happened = ~cancelled
    landed = happened & ~diverted
    flights = pd.DataFrame(
        {
            "flight_id": np.arange(1, count + 1),
            "carrier": draw.choice(["AA", "B6", "UA"], count),
            "number": draw.integers(1, 6, count),
            "origin": draw.choice(["EWR", "JFK", "LGA"], count),
            "dest": draw.choice(["BOS", "ORD"], count),
            "tailnum": draw.choice(["", "N1", "N2", "N3", "N4"], count),
            "sched_dep": sched,
            "block_min": block,
            "local_min": sched // 60 % 1440,
            "weekday": sched // 86400 % 7,
            "distance": block * 7,
            "dep_ts": pd.array(np.where(happened, sched + delay * 60, 0), dtype="Int64"),
            "arr_ts": pd.array(np.where(landed, sched + (block + arr_delay) * 60, 0), dtype="Int64"),
            "dep_delay": pd.array(delay, dtype="Int64"),
            "arr_delay": pd.array(arr_delay, dtype="Int64"),
        }
    )
    flights.loc[~happened, ["dep_ts", "dep_delay"]] = pd.NA
    flights.loc[~landed, ["arr_ts", "arr_delay"]] = pd.NA
    hours = np.arange(START - 86400, START + 2 * 86400, 3600)
    weather = pd.concat(
        pd.DataFrame({"origin": origin, "obs_ts": hours, "temp": draw.normal(50, 9, len(hours))})
        for origin in ("EWR", "JFK", "LGA")
    ).reset_index(drop=True)
    for name in ("wind_dir", "wind_speed", "precip", "visib"):
        weather[name] = draw.random(len(weather))
    planes = pd.DataFrame({"tailnum": ["N1", "N2"], "built": [1999.0, np.nan], "manufacturer": ["BOEING", "AIRBUS"]})
    return {"flights": flights, "weather": weather, "planes": planes}


def test_no_feature_changes_when_the_future_does() -> None:
    """Whatever happens after the moment of prediction must not be seen at it."""
    data = made_up_tables()
    known = Offline(data).columns()
    for index in (150, 233, 399):
        now = int(data["flights"]["sched_dep"][index]) - LEAD_S
        changed = {name: frame.copy() for name, frame in data.items()}
        flights, weather = changed["flights"], changed["weather"]
        left, landed = flights["dep_ts"] > now, flights["arr_ts"] > now
        assert left.any()
        assert landed.any()
        flights.loc[left.fillna(False), "dep_delay"] += 500
        flights.loc[left.fillna(False), "dep_ts"] += 30_000
        flights.loc[landed.fillna(False), "arr_delay"] -= 400
        flights.loc[landed.fillna(False), "arr_ts"] += 24_000
        weather.loc[weather["obs_ts"] > now, ["temp", "visib"]] = -99.0
        seen = Offline(changed).columns()
        for name in (*RAW, *CATEGORICAL):
            assert str(seen[name][index]) == str(known[name][index]), name


def test_windows_are_what_their_definitions_say() -> None:
    """Compare with the definitions written out flight by flight."""
    data = made_up_tables()
    columns = Offline(data).columns()
    everyone = list(data["flights"].itertuples(index=False))
    for flight in everyone[120:400:23]:
        at, now = flight.flight_id - 1, flight.sched_dep - LEAD_S
        here = [f for f in everyone if f.origin == flight.origin]
        due = [f for f in here if now - 2 * HOUR_S < f.sched_dep <= now]
        waiting = [f for f in due if pd.isna(f.dep_ts) or f.dep_ts > now]
        assert columns["origin_waiting"][at] == len(waiting)
        so_far = [((now if f in waiting else f.dep_ts) - f.sched_dep) / 60 for f in due]
        assert columns["origin_so_far"][at] == pytest.approx(np.mean(so_far) if so_far else math.nan, nan_ok=True)
        landed = [
            f.arr_delay - f.dep_delay
            for f in everyone
            if f.dest == flight.dest and not pd.isna(f.arr_ts) and now - 6 * HOUR_S < f.arr_ts <= now
        ]
        assert columns["dest_gain_6h"][at] == pytest.approx(np.mean(landed) if landed else math.nan, nan_ok=True)
        same = [f for f in everyone if f.tailnum == flight.tailnum != "" and not pd.isna(f.dep_ts) and f.dep_ts <= now]
        last = max((f.dep_ts for f in same), default=math.nan)
        assert columns["last_dep_ts"][at] == pytest.approx(last, nan_ok=True)


def row_of(**known: Any) -> dict[str, Any]:
    return dict.fromkeys((*RAW, *CATEGORICAL)) | known


def write_vocabulary(home: Path) -> None:
    known = {"carrier": ["AA", "UA"], "origin": ["EWR"], "dest": ["BOS"], "weekday": [0, 1], "maker": ["BOEING"]}
    (home / "vocabulary.json").write_text(json.dumps(known))


def test_preprocess_makes_inputs_of_any_row(home: Path) -> None:
    write_vocabulary(home)
    known = row_of(
        temp=50.0, wind_speed=10.0, wind_dir=90.0, sched_dep=36_000, last_dep_ts=0, last_sched_dep=-600,
        last_block_min=100, carrier="UA", origin="EWR", weekday=1, maker="",
    )  # fmt: skip
    inputs = serving.preprocess([known, row_of()])
    assert inputs["numeric"].dtype == np.float32
    assert inputs["numeric"].shape == (2, len(NUMERIC))
    assert inputs["categorical"].dtype == np.int64
    assert inputs["categorical"].tolist() == [[2, 1, 0, 2, 0], [0, 0, 0, 0, 0]]
    found = dict(zip(NUMERIC, inputs["numeric"][0].tolist(), strict=True))
    assert found["temp"] == 50.0
    assert found["wind_east"] == pytest.approx(10.0)
    assert found["wind_north"] == pytest.approx(0.0, abs=1e-5)
    assert found["aircraft_gap_min"] == 600
    assert found["aircraft_slack_min"] == 400
    assert found["aircraft_sched_slack_min"] == 410
    assert math.isnan(found["origin_late"])
    assert np.isnan(inputs["numeric"][1]).all()


def test_one_row_gives_what_it_gives_among_many() -> None:
    raw = np.random.default_rng(0).normal(0, 100, (50, len(RAW)))
    raw[raw > 150] = np.nan
    alone = np.concatenate([numeric_of(raw[i : i + 1]) for i in range(len(raw))])
    np.testing.assert_array_equal(alone, numeric_of(raw))
    np.testing.assert_array_equal(alone[:, : len(PLAIN)], raw[:, : len(PLAIN)].astype(np.float32))


def test_postprocess_calls_a_flight_late_from_one_half_on() -> None:
    answers = serving.postprocess({"risk": np.array([0.25, 0.5], dtype=np.float32)})
    assert answers == [{"risk": 0.25, "late": False}, {"risk": 0.5, "late": True}]


@pytest.mark.torch
def test_model_answers_each_row_by_itself_and_takes_what_is_not_known() -> None:
    torch = pytest.importorskip("torch")
    from flight_risk.model import FlightRisk, Size

    torch.manual_seed(0)
    edges = torch.linspace(-2, 2, Size().bins + 1).repeat(4, 1)
    model = FlightRisk(edges, [3, 5], Size()).eval()
    numeric = torch.randn(6, 4)
    categorical = torch.stack([torch.arange(6) % 3, torch.arange(6) % 5], dim=1)
    numeric[0] = math.nan
    with torch.inference_mode():
        together = model(numeric, categorical)
        alone = torch.cat([model(numeric[i : i + 1], categorical[i : i + 1]) for i in range(6)])
    assert together.shape == (6,)
    assert ((together > 0) & (together < 1)).all()
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    assert together.unique().numel() == 6


@pytest.mark.torch
def test_model_that_was_not_trained_says_how_to_train_it() -> None:
    pytest.importorskip("torch")
    from flight_risk.model import load

    with pytest.raises(FileNotFoundError, match=r"python -m flight_risk\.train"):
        load()


def test_clock_runs_from_the_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clock.REPLAY, "1380000000@1000")
    monkeypatch.setattr(clock.time, "time", lambda: 1012.5)
    assert clock.now() == 1380000012.5
    assert clock.replay_from_now() == "1380000000@1000"


def test_clock_without_an_anchor_starts_on_the_default_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: 77.0)
    assert clock.now() == clock.DEFAULT_START
    assert clock.replay_from_now() == f"{clock.DEFAULT_START}@77.000"


@pytest.mark.parametrize("text", ["now", "12@", "@12", "a@b"])
def test_malformed_anchor_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clock.REPLAY, text)
    with pytest.raises(ValueError, match="hint: FLIGHT_RISK_REPLAY="):
        clock.now()


def write_flights(home: Path) -> None:
    with closing(sqlite3.connect(home / "flights.sqlite")) as connection:
        for statement in tables.statements(tables.CREATE):
            connection.execute(statement)
        names = "flight_id, carrier, number, origin, dest, tailnum, sched_dep, block_min, local_min, weekday, distance"
        rows = [(i, "AA", i, ("EWR", "JFK")[i % 2], "BOS", "", START + i * 60, 60, 0, 0, 1) for i in range(200)]
        connection.executemany(f"INSERT INTO flights ({names}) VALUES ({', '.join('?' * 11)})", rows)
        connection.commit()


def test_traffic_is_the_same_for_the_same_seed_and_skewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flights(home)
    monkeypatch.setenv(clock.REPLAY, f"{START}@0")
    first, again, other = board(1), board(1), board(2)
    bodies = [next(first) for _ in range(6000)]
    assert bodies == [next(again) for _ in range(6000)]
    assert bodies != [next(other) for _ in range(6000)]
    asked = [json.loads(body)["entities"] for body in bodies]
    screens = [flights for flights in asked if len(flights) > 1]
    assert 0.03 < len(screens) / len(asked) < 0.07
    assert all(5 <= len(flights) <= 10 and len(set(flights)) == len(flights) for flights in screens)
    assert {flight for flights in asked for flight in flights} <= set(range(ACTIVE_S // 60 + 1))
    polls = np.bincount([flights[0] for flights in asked if len(flights) == 1])
    assert polls.max() > 8 * np.median(polls[polls > 0])


def test_traffic_on_a_day_without_flights_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flights(home)
    monkeypatch.setenv(clock.REPLAY, "1000@0")
    with pytest.raises(ValueError, match="no flights leave"):
        next(board(1))
