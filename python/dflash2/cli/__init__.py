"""The command `dflash2`; one module per sub-command."""
