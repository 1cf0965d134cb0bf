"""`python -m keras_calib` is the command `keras-calib`."""

import sys

from keras_calib.command_line import main

if __name__ == "__main__":
    sys.exit(main())
