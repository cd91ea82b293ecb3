"""Which open support tickets are of customers about to leave? MiniLM's embedding of the text, and two SQL features."""
