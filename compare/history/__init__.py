"""Find what became wrong, and when, in the ledgers of many runs; write it as text, JSON and a static site."""
