"""Write tables as text, Markdown and HTML, and dataclasses as JSON, independently of the result types."""
