"""Levers: changes that would make requests faster, their predicted gain and their order. Pure."""
