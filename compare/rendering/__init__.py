"""Draw neutral tables as terminal text or Markdown; knows no result type."""
