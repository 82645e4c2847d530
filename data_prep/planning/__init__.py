"""Which rows go where, in which order: duplicates, blends, shuffles and splits, decided on numbers of rows."""
