"""Live figures: what the page at /ui and ``tailcut top`` show, made once a second for all who watch."""
