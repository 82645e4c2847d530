"""What `python -m reward.stats` reads out of reward logs."""
