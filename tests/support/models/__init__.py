"""The zoo of models, and what comparing each of them gives."""
