"""One result -> text, Markdown, HTML, PNG."""
