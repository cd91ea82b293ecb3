"""What a profile is made of, and what follows from it. Decisions only: nothing here reads a clock or a file."""
