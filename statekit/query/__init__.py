"""Reading state from outside: tables of states, and what follows a checkpoint."""
