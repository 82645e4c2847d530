"""What `reward.client` does for each response that verl hands over."""
