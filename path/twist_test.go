package path

import (
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
)

func TestNoPairOfNATsIsLostToAFilterThatOpensLate(t *testing.T) {
	t.Parallel()
	needMatrix(t, matrix(t, "Ds", 15*time.Second, func(w *world, a, b *vnet.NATConfig) {
		a.OpensLate = time.Duration(w.rng.IntN(400)) * time.Millisecond
		b.OpensLate = time.Duration(w.rng.IntN(400)) * time.Millisecond
	}))
}

func TestNoPairOfNATsIsLostToPacketsThatComeTooEarly(t *testing.T) {
	t.Parallel()
	got := matrix(t, "Ds", 15*time.Second, func(w *world, a, b *vnet.NATConfig) {
		a.Spoils, b.Spoils = true, true
		// One side has the other's addresses from the coordinator long before it is the other way round.
		w.relayLeg, w.uneven = 50*time.Millisecond, true
	})
	needMatrix(t, got)
	if d := got[plainly]; d.packets != 0 || d.quantile(1) > time.Second {
		t.Errorf("plain cells are sprayed, or late: %v", d)
	}
}

func TestNoPairOfNATsIsLostToLoss(t *testing.T) {
	t.Parallel()
	needMatrix(t, matrix(t, "Ds.", 20*time.Second, func(w *world, _, _ *vnet.NATConfig) { w.loss, w.relayLoss = 0.05, 0.05 }))
}

func TestTheFourHardPairsArePredictedDespiteLossAndSpoiling(t *testing.T) {
	t.Parallel()
	got := matrix(t, "p", 20*time.Second, func(w *world, a, b *vnet.NATConfig) {
		w.loss, w.relayLoss = 0.05, 0.05
		a.Allocation, b.Allocation = weft.SequentialAllocation, weft.SequentialAllocation
		a.Spoils, b.Spoils = true, true
	})
	needMatrix(t, got)
}

// TestOnABusyNATPredictionIsTriedUntilItIsQuietForAMoment has others connect through both NATs, five times a
// second each.
func TestOnABusyNATPredictionIsTriedUntilItIsQuietForAMoment(t *testing.T) {
	t.Parallel()
	got := matrix(t, "p", 20*time.Second, func(w *world, a, b *vnet.NATConfig) {
		a.Allocation, b.Allocation = weft.SequentialAllocation, weft.SequentialAllocation
		var others func(h *host, port uint16)
		others = func(h *host, port uint16) {
			h.out(netip.AddrPortFrom(addr("10.0.9.9:1").Addr(), port), addr("192.0.2.80:443"))
			w.after(time.Duration(w.rng.ExpFloat64()*float64(200*time.Millisecond)), func() { others(h, port+1) })
		}
		for _, h := range w.hosts {
			w.after(time.Millisecond, func() { others(h, 5000) })
		}
	})
	needMatrix(t, got)
}

// TestWhatNetcheckDoesNotKnowIsTriedInBothAssignments has nodes that know nothing of their NATs.
func TestWhatNetcheckDoesNotKnowIsTriedInBothAssignments(t *testing.T) {
	t.Parallel()
	got := matrix(t, "Ds.", 25*time.Second, func(w *world, _, _ *vnet.NATConfig) { w.a.noNAT, w.b.noNAT = true, true })
	if got[plainly].share() < 1 || got[sprayed].share() < 0.97 {
		t.Errorf("%v, %v", got[plainly], got[sprayed])
	}
	if got[hard].packets > 20_000 {
		t.Errorf("%v", got[hard])
	}
}

// TestPortsInOrderAreHitByTheFirstGuesses has NATs whose ports the opener can tell the prober.
func TestPortsInOrderAreHitByTheFirstGuesses(t *testing.T) {
	t.Parallel()
	for _, allocation := range []weft.Allocation{weft.SequentialAllocation, weft.PreservingAllocation} {
		got := matrix(t, "s", 12*time.Second, func(w *world, a, b *vnet.NATConfig) { a.Allocation, b.Allocation = allocation, allocation })
		needMatrix(t, got)
		if d := got[sprayed].quantile(0.95); d > 1200*time.Millisecond {
			t.Errorf("%v: %v", allocation, got[sprayed])
		}
	}
}

func TestNoPairOfNATsIsLostToAPoolOfAddressesThatTheOracleDoesNotGiveUp(t *testing.T) {
	t.Parallel()
	pool := func(c *vnet.NATConfig, third byte) {
		c.Pooling = vnet.ArbitraryPooling
		for i := range byte(4) {
			c.Public = append(c.Public, netip.AddrFrom4([4]byte{203, 0, third, 10 + i}))
		}
	}
	got := matrix(t, "Ds.", 30*time.Second, func(_ *world, a, b *vnet.NATConfig) { pool(a, 1); pool(b, 2) })
	if got[plainly].direct < got[plainly].runs || got[sprayed].share() < 0.95 || got[hard].packets > 20_000 {
		t.Errorf("plain %v, sprayed %v, hard %v", got[plainly], got[sprayed], got[hard])
	}
}
