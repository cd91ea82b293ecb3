"""A ladder's file and every report that is made from it."""
