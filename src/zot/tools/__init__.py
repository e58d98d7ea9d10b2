"""What the model touches the world with."""
