package gather

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft"
)

// A lookout is a watch in a bubble whose discoveries take five seconds and find what the test says.
type lookout struct {
	*NATWatch
	mu       sync.Mutex      // of the rest
	began    []time.Duration // of the discoveries
	part     NATs            // told after a second
	finds    NATs
	answered bool
}

// world says what discoveries will find from now on: in part, and in the end.
func (l *lookout) world(part, finds NATs, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part, l.finds, l.answered = part, finds, answered
}

// looked is when discoveries began.
func (l *lookout) looked() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.began)
}

func newLookout(t *testing.T, part, finds NATs, answered bool) *lookout {
	l := &lookout{NATWatch: &NATWatch{found: make(chan NATs, 1), recheck: make(chan struct{}, 1), moved: make(chan struct{}, 1)}}
	l.world(part, finds, answered)
	start := time.Now()
	l.discover = func(ctx context.Context, inPart func(NATs)) (NATs, bool) {
		l.mu.Lock()
		l.began = append(l.began, time.Since(start))
		finds, answered, part := l.finds, l.answered, l.part
		l.mu.Unlock()
		for i := range 5 {
			if i == 1 && part != (NATs{}) {
				inPart(part)
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return NATs{}, false
			}
		}
		return finds, answered
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// next is what is told within a time.
func (l *lookout) next(t *testing.T, within time.Duration) NATs {
	t.Helper()
	select {
	case n := <-l.found:
		return n
	case <-time.After(within):
		t.Fatalf("nothing was told within %v", within)
	}
	return NATs{}
}

var (
	symmetric = NATs{IPv4: weft.NAT{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}}
	cone      = NATs{IPv4: weft.NAT{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Hairpin: weft.Supported}}
)

func TestTheNATIsLookedAtFromTimeToTimeAndToldWhenItIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookout(t, NATs{}, cone, true)
		if got := l.next(t, 6*time.Second); got != cone {
			t.Errorf("told %v", got)
		}
		part := NATs{IPv4: weft.NAT{Mapping: weft.AddressDependentMapping}} // is not told: more was known before
		l.world(part, cone, true)
		select {
		case n := <-l.found:
			t.Errorf("the same was told again: %v", n)
		case <-time.After(3 * watchEvery):
		}
		l.world(part, symmetric, true)
		if got := l.next(t, 2*watchEvery); got != symmetric {
			t.Errorf("told %v", got)
		}
		if n := len(l.looked()); n < 4 || n > 6 {
			t.Errorf("looked %d times, at %v", n, l.looked())
		}
	})
}

func TestWhatIsKnownInPartIsToldBeforeTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := NATs{IPv4: weft.NAT{Mapping: cone.IPv4.Mapping}}
		l := newLookout(t, part, cone, true)
		if got := l.next(t, 2*time.Second); got != part {
			t.Errorf("told %v first", got)
		}
		if got := l.next(t, 6*time.Second); got != cone {
			t.Errorf("told %v in the end", got)
		}
	})
}

func TestAChangeOfTheNetworkForgetsTheNATAtOnceAndLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookout(t, NATs{}, cone, true)
		l.next(t, 6*time.Second)
		l.world(NATs{}, symmetric, true)
		for range 5 { // an address goes, another comes, a route ...
			l.Moved()
			time.Sleep(watchSettle / 5)
		}
		if got := l.next(t, time.Second); got != (NATs{}) {
			t.Errorf("after the change it still says %v", got)
		}
		if got := l.next(t, 6*time.Second); got != symmetric {
			t.Errorf("told %v", got)
		}
		if len(l.looked()) != 2 {
			t.Errorf("looked at %v", l.looked())
		}
	})
}

func TestAChangeOfTheNetworkEndsADiscoveryThatItMakesWorthless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookout(t, NATs{}, cone, true)
		time.Sleep(3 * time.Second)
		l.world(NATs{}, symmetric, true)
		l.Moved()
		if got := l.next(t, 6*time.Second); got != symmetric {
			t.Errorf("told %v", got)
		}
		if took := l.looked()[1]; took > 4*time.Second {
			t.Errorf("looked again after %v", took)
		}
	})
}

func TestAnotherServerIsAskedSoonAndASilentNetworkMoreAndMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookout(t, NATs{}, NATs{}, false)
		time.Sleep(time.Hour)
		if n := len(l.looked()); n < 6 || n > 10 {
			t.Errorf("looked %d times in an hour in which nobody answered: %v", n, l.looked())
		}
		l.world(NATs{}, cone, true)
		l.Recheck()
		if got := l.next(t, 6*time.Second); got != cone {
			t.Errorf("told %v", got)
		}
	})
}

func TestWhatADiscoveryMissesStaysKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookout(t, NATs{}, cone, true)
		l.next(t, 6*time.Second)
		finds := cone
		finds.IPv4.Filtering, finds.IPv4.Allocation = weft.FilteringUnknown, weft.PreservingAllocation
		l.world(NATs{}, finds, true)
		l.Recheck()
		want := cone
		want.IPv4.Allocation = weft.PreservingAllocation
		if got := l.next(t, 6*time.Second); got != want {
			t.Errorf("told %v, want %v", got, want)
		}
	})
}

func TestAWatchOverRealSocketsFindsThatThereIsNoNATAndEndsWithItsContext(t *testing.T) {
	relay := serveRelay(t, listenAt(t, "127.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := WatchNAT(ctx, WatchConfig{Surroundings: func(context.Context) Surroundings {
		return Surroundings{Servers: []netip.AddrPort{relay.addr}, Local: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}}
	}})
	if got := <-w.Found(); got.IPv4.Mapping != weft.NoNAT || got.IPv6 != (weft.NAT{}) {
		t.Errorf("told %v", got)
	}
	cancel()
	for range w.Found() {
	}
}
