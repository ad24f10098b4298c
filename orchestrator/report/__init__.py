"""What a person reads afterwards."""
