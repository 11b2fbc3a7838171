"""Sources: what they read, and how their records are decoded."""
