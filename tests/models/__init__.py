"""Small models for tests."""
