"""How the built-in model is made: the corpus, the training, the evaluation. Not part of the wheel."""

import os

# Before PyTorch is loaded: waiting threads sleep. On a busy machine they would burn most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
