"""What payloads have in common, and which share of look-ups a cache would answer. Pure."""
