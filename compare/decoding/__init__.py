"""Call a language model in several ways that should give the same numbers: with a cache, in batches, with padding."""
