"""Which programs are refused, and which differ from one process as docs/numbers.md says."""

from __future__ import annotations

#: By program, the beginning of the refusal.
REFUSED = {
    "adversarial": "a model with a train_step or test_step of its own is not supported",
    "metric_learning": "expected a loss function that returns a value for each sample",
    "optimizer_accumulation": "an optimizer with gradient_accumulation_steps is not supported",
}
#: By program, how far a weight may be from that of one process after eight steps.
DIFFERS = {"convolutions_batch_norm": 0.1}
