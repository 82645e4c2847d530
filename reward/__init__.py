"""Reward-model server and the client that verl calls."""
