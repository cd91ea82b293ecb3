"""all-MiniLM-L6-v2 as an embedding service: text in, a unit vector of 384 numbers out."""
