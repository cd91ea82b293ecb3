"""The user's code of a deployment: which files it is, what they hash to, and a copy of them."""
