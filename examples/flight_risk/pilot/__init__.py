"""The pilot: what one ships first. FastAPI, indexed tables, the model loaded once, features read on every request."""
