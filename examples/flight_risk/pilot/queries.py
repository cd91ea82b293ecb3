"""The pilot's SQL: five statements answer all features of the flights of one request.

``:now`` is the moment of prediction, ``{ids}`` the request's flights. A flight is known on the board from a day after
its schedule to two days before it.
"""

BOARD = """
SELECT b.flight_id, b.carrier, b.origin, b.dest, b.weekday, b.local_min, b.block_min, b.sched_dep,
       p.built, COALESCE(p.manufacturer, '') AS maker,
       w.temp, w.wind_dir, w.wind_speed, w.precip, w.visib
FROM flights b
LEFT JOIN planes p ON p.tailnum = b.tailnum
LEFT JOIN weather w ON w.origin = b.origin AND w.obs_ts = (
    SELECT MAX(latest.obs_ts) FROM weather latest
    WHERE latest.origin = b.origin AND latest.obs_ts > :now - 21600 AND latest.obs_ts <= :now
)
WHERE b.flight_id {ids} AND b.sched_dep BETWEEN :now - 86400 AND :now + 172800
"""

ORIGIN = """
SELECT b.flight_id,
       COALESCE(SUM(CASE WHEN f.sched_dep <= :now AND (f.dep_ts IS NULL OR f.dep_ts > :now) THEN 1 ELSE 0 END), 0)
           AS origin_waiting,
       CAST(AVG(CASE WHEN f.sched_dep <= :now THEN
                    CASE WHEN f.dep_ts <= :now THEN f.dep_ts ELSE :now END - f.sched_dep END)
            AS DOUBLE PRECISION) / 60 AS origin_so_far,
       COALESCE(SUM(CASE WHEN f.sched_dep > :now THEN 1 ELSE 0 END), 0) AS origin_next,
       (SELECT CAST(AVG(CASE WHEN d.dep_delay > 15 THEN 1 ELSE 0 END) AS DOUBLE PRECISION) FROM flights d
        WHERE d.origin = b.origin AND d.dep_ts > :now - 3600 AND d.dep_ts <= :now) AS origin_late
FROM flights b
LEFT JOIN flights f ON f.origin = b.origin AND f.sched_dep > :now - 7200 AND f.sched_dep <= :now + 3600
WHERE b.flight_id {ids}
GROUP BY b.flight_id
"""

CARRIER = """
SELECT b.flight_id,
       CAST(AVG(CASE WHEN f.dep_ts <= :now THEN f.dep_ts ELSE :now END - f.sched_dep) AS DOUBLE PRECISION) / 60
           AS carrier_origin_so_far,
       (SELECT CAST(AVG(CASE WHEN d.dep_delay > 15 THEN 1 ELSE 0 END) AS DOUBLE PRECISION) FROM flights d
        WHERE d.carrier = b.carrier AND d.origin = b.origin AND d.dep_ts > :now - 10800 AND d.dep_ts <= :now)
           AS carrier_origin_late,
       (SELECT CAST(AVG(CASE WHEN a.dep_ts <= :now THEN a.dep_ts ELSE :now END - a.sched_dep)
               AS DOUBLE PRECISION) / 60 FROM flights a
        WHERE a.carrier = b.carrier AND a.sched_dep > :now - 7200 AND a.sched_dep <= :now) AS carrier_so_far
FROM flights b
LEFT JOIN flights f ON f.carrier = b.carrier AND f.origin = b.origin
    AND f.sched_dep > :now - 10800 AND f.sched_dep <= :now
WHERE b.flight_id {ids}
GROUP BY b.flight_id
"""

JOURNEY = """
SELECT b.flight_id,
       (SELECT COUNT(*) FROM flights w
        WHERE w.dest = b.dest AND w.sched_dep > :now - 14400 AND w.sched_dep <= :now
          AND (w.dep_ts IS NULL OR w.dep_ts > :now)) AS dest_waiting,
       CAST(AVG(CASE WHEN f.arr_ts > :now - 21600 THEN f.arr_delay - f.dep_delay END) AS DOUBLE PRECISION)
           AS dest_gain_6h,
       CAST(AVG(f.arr_delay - f.dep_delay) AS DOUBLE PRECISION) AS dest_gain_24h,
       CAST(AVG(CASE WHEN f.origin = b.origin THEN f.arr_delay - f.dep_delay END) AS DOUBLE PRECISION)
           AS route_gain_24h,
       (SELECT CAST(AVG(s.arr_delay) AS DOUBLE PRECISION) FROM flights s
        WHERE s.carrier = b.carrier AND s.number = b.number AND s.origin = b.origin AND s.dest = b.dest
          AND s.arr_ts > :now - 2592000 AND s.arr_ts <= :now) AS service_delay_30d
FROM flights b
LEFT JOIN flights f ON f.dest = b.dest AND f.arr_ts > :now - 86400 AND f.arr_ts <= :now
WHERE b.flight_id {ids}
GROUP BY b.flight_id
"""

AIRCRAFT = """
SELECT b.flight_id, f.dep_ts AS last_dep_ts, f.sched_dep AS last_sched_dep, f.block_min AS last_block_min,
       CASE WHEN f.arr_ts <= :now THEN f.arr_delay END AS last_arr_delay
FROM flights b
LEFT JOIN flights f ON b.tailnum <> '' AND f.flight_id = (
    SELECT latest.flight_id FROM flights latest
    WHERE latest.tailnum = b.tailnum AND latest.dep_ts > :now - 259200 AND latest.dep_ts <= :now
    ORDER BY latest.dep_ts DESC, latest.flight_id DESC
    LIMIT 1
)
WHERE b.flight_id {ids}
"""

STATEMENTS = (BOARD, ORIGIN, CARRIER, JOURNEY, AIRCRAFT)
"""BOARD first: it says which flights there are."""
