"""What a run leaves behind: its directory, the pictures of it, its copies elsewhere."""
