"""Write results: tables as text, Markdown and HTML, dataclasses as JSON; knows no result type."""
