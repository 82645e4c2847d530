"""Turn a job into one readable sbatch script, and supervise it on each node."""
