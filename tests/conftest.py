"""What every test of the tree relies on."""

import signal

# A background job starts with SIGINT ignored, and the programs that tests interrupt inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
