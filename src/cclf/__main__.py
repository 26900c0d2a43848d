"""`python -m cclf` is `cclf`."""

import sys

from cclf.cli import main

sys.exit(main())
