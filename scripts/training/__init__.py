"""Training of small DFlash 2 drafters; the command is scripts/train_drafter.py. Needs torch."""
