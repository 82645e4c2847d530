"""Files of any kind to rows, in blocks of bounded size."""
