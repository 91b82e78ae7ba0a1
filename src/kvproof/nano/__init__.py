"""What the nano models are taught and asked: word problems and records far back in a prompt."""
