"""Speed of a variant: bare, under load, and tuned; and the verdicts on it."""
