package path

import (
	"strings"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// twoWays is a rig with two links, whose direct ways to the peer take 30 and 10 ms, and a relay.
func twoWays(t *testing.T) (r *rig, dear, cheap weft.Via, rtts map[weft.Via]time.Duration) {
	r = newRig(t)
	local := append(candidates(weft.Host, "192.168.1.2:41641"), candidates(weft.Host, "10.64.0.2:41641")...)
	local[0].Link, local[1].Link = 1, 2
	r.SetLocal(r.now, local)
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.9:7"))
	at := addr("203.0.113.9:7")
	cheap, dear = weft.DirectVia(1, at), weft.DirectVia(2, at)
	rtts = map[weft.Via]time.Duration{cheap: 30 * time.Millisecond, dear: 10 * time.Millisecond, relayUDP: 20 * time.Millisecond}
	return r, dear, cheap, rtts
}

func TestTheWayInUseIsOfTheLowestMetricThatWorks(t *testing.T) {
	r, dear, cheap, rtts := twoWays(t)
	use := func(d time.Duration, want weft.Via) {
		t.Helper()
		for range int(d / (5 * time.Second)) {
			r.Want(r.now)
			r.play(5*time.Second, rtts)
		}
		if got := r.Selected(); got != want {
			t.Fatalf("in use is %v by link %d, not link %d: %q", got, got.Link, want.Link, r.Snapshot(r.now).Reason)
		}
	}
	use(10*time.Second, dear) // without metrics the faster one is
	r.SetMetrics(r.now, map[weft.LinkID]int{2: 20})
	use(5*time.Second, cheap)
	if why := r.Snapshot(r.now).Reason; !strings.Contains(why, "lower metric: 0 instead of 20") {
		t.Errorf("it moved because %q", why)
	}
	moved := len(r.Snapshot(r.now).Switches)
	use(60*time.Second, cheap) // and stays there, however much faster the other is
	if n := len(r.Snapshot(r.now).Switches) - moved; n != 0 {
		t.Errorf("it moved %d times: %+v", n, r.Snapshot(r.now).Switches[moved:])
	}

	// The one that costs carries data while nothing else does, a relay by the other link included.
	delete(rtts, cheap)
	delete(rtts, relayUDP)
	use(20*time.Second, dear)
	rtts[cheap] = 30 * time.Millisecond
	use(2*time.Minute, cheap)

	// What the peer says of its links counts as well.
	r.SetMetrics(r.now, nil)
	r.bond.uplinks = wire.Uplinks{}
	use(10*time.Second, dear)
}

func TestWithoutMetricsNothingIsRankedByThem(t *testing.T) {
	r, dear, _, rtts := twoWays(t)
	r.play(5*time.Second, rtts)
	for _, p := range r.pairs {
		if c := r.cost(p); c != 0 {
			t.Errorf("%v by link %d costs %d", p.via, p.via.Link, c)
		}
	}
	r.SetMetrics(r.now, map[weft.LinkID]int{1: 5, 2: 7})
	for _, p := range r.pairs {
		want := map[weft.Via]int{relayTCP: wire.MaxMetric + 1, dear: 7}
		if w, ok := want[p.via]; ok && r.cost(p) != w {
			t.Errorf("%v by link %d costs %d, not %d", p.via, p.via.Link, r.cost(p), w)
		}
	}
}
