"""Quality of a variant: its scores on the holdout, and checks against the model that it was made from."""
