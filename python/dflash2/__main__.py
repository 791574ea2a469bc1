"""`python -m dflash2`."""

import sys

from dflash2.cli.main import main

sys.exit(main())
