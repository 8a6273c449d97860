"""The wait for the own port."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rendezvous.machines import ROSTER, identity, sent
from tfmp.rendezvous.peer_status import Kind, PeerStatus
from tfmp.rendezvous.port_claim import PATIENCE_S, PortClaim
from tfmp.rendezvous.protocol import Dial


def test_a_port_that_stays_taken_is_told_with_its_holder() -> None:
    for kind, holder in ((Kind.FOREIGN, "another program"), (Kind.ALREADY_TRAINING, "a TensorFlow server, of another")):
        claim = PortClaim(replace(identity(1), port=2222), ROSTER, 0.0)
        assert claim.tick(0.0) == [Dial(1)]
        claim.found(1, PeerStatus(kind), 0.1)
        claim.tick(PATIENCE_S - 0.1)
        assert claim.end_reason is None
        claim.tick(PATIENCE_S)
        assert claim.end_reason is not None
        assert claim.end_reason.what.startswith(f"port 2222 is in use by {holder}")
        assert claim.end_reason.exit_code == 2


def test_a_port_held_by_the_same_worker_is_told_at_once() -> None:
    claim = PortClaim(identity(1), ROSTER, 0.0)
    claim.tick(0.0)
    assert sent(claim.dialed(3, 1, 0.1)) == [(3, "hello")]
    claim.received(3, {"type": "refused", "kind": "TAKEN", "text": "by process 7 on h1"}, "", 0.2)
    assert claim.end_reason is not None
    assert claim.end_reason.what == "worker 1 is already taken by another worker, by process 7 on h1"
