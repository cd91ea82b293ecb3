"""The same question as flight_risk, answered by gradient-boosted trees on the same features."""
