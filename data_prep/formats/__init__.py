"""Input formats: what a row of each must hold, and how it becomes an Example."""
