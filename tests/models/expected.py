"""Which programs are refused, and which differ from one process as docs/numbers.md says."""

from __future__ import annotations

#: By program, the beginning of the refusal.
REFUSED = {
    "adversarial": "a model with a train_step or test_step of its own is not supported",
    "variational_add_loss": "layer 'kl_divergence' adds a loss of its own",
}
#: By program, how far a weight may be from that of one process after eight steps.
DIFFERS = {"convolutions_batch_norm": 0.1}
