"""What each form of a build's report shows: figures, text, HTML and plots."""
