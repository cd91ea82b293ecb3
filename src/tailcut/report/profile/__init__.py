"""A profile's file and every report that is made from it."""
