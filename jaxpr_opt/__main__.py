"""``python -m jaxpr_opt`` is ``jaxpr-opt``."""

import sys

from jaxpr_opt.cli import main

sys.exit(main())
