"""Protocols: Open Inference Protocol and /predict, whatever transport carries them."""
