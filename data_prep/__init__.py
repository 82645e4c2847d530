"""Raw data to the parquet rows that verl reads."""
