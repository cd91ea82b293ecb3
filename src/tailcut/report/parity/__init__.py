"""The file and the reports of a comparison with the pilot."""
