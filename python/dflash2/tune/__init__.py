"""What drafting brings on this machine and a user's prompts, before it is used."""
