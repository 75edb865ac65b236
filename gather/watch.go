package gather

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/stun"
)

const (
	// watchEvery is how often a NAT is looked at that nobody says has changed: a router's restart with other
	// settings is rare, and a discovery costs some 80 packets.
	watchEvery = 20 * time.Minute
	// watchRetry is the wait after a discovery that no server answered; it doubles, up to watchEvery.
	watchRetry = 15 * time.Second
	// watchSettle is how long a change of the network is left alone: addresses and routes come one by one.
	watchSettle = 500 * time.Millisecond
	// watchPatience bounds one discovery; it needs some 5 s.
	watchPatience = 20 * time.Second
)

// Surroundings are what a discovery needs to know of the network that the node is in now.
type Surroundings struct {
	Servers []netip.AddrPort // the relays' STUN addresses, of both families
	Probers []stun.Prober    // the relays among them that the node is bound to over UDP
	Local   []netip.Addr     // the machine's own addresses, of both families
}

// WatchConfig is what a watch of the NATs is made of.
type WatchConfig struct {
	// Surroundings is asked before each discovery, by the watch's goroutine; it may wait until ctx ends.
	Surroundings func(ctx context.Context) Surroundings
	// Probe is as in BehaviourConfig; nil where no relay can be asked.
	Probe  func(ctx context.Context, server netip.AddrPort, p stun.Probe) (sent bool)
	Device string       // the interface whose way out is watched; "": the one that the routes say
	Logger *slog.Logger // nil: none
}

// NATs are what is known of the NATs on the way out, per address family. The zero value is nothing.
type NATs struct{ IPv4, IPv6 weft.NAT }

// A NATWatch keeps finding out what the NATs on the way out do, in the background and on sockets of its own. It
// may be used by many goroutines at once.
type NATWatch struct {
	cfg   WatchConfig
	found chan NATs
	// discover finds out what there is to know, now, and tells on the way what it knows in part.
	discover func(ctx context.Context, inPart func(NATs)) (n NATs, answered bool)
	recheck  chan struct{}
	moved    chan struct{}
}

// WatchNAT begins a watch that ends with ctx: it looks at once, then whenever told to, and every 20 minutes.
func WatchNAT(ctx context.Context, cfg WatchConfig) *NATWatch {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &NATWatch{
		cfg: cfg, found: make(chan NATs, 1), recheck: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	w.discover = w.behave
	go w.run(ctx)
	return w
}

// Found is what is known, whenever that changes, in part first: a channel of one place, where the new takes the
// place of what nobody fetched. It is closed when the watch ends.
func (w *NATWatch) Found() <-chan NATs { return w.found }

// Recheck looks again: servers came or went.
func (w *NATWatch) Recheck() { ring(w.recheck) }

// Moved forgets what is known, which is told by Found, and looks again: the network changed.
func (w *NATWatch) Moved() { ring(w.moved) }

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it rings already
	}
}

func (w *NATWatch) run(ctx context.Context) {
	defer close(w.found)
	var known NATs
	tell := func(n NATs) {
		if n == known {
			return
		}
		known = n
		select {
		case <-w.found:
		default:
		}
		w.found <- n // the one sender: there is room now
	}
	var full NATs // what the last discovery that came to its end found
	inPart := func(part NATs) { tell(NATs{cmp.Or(full.IPv4, part.IPv4), cmp.Or(full.IPv6, part.IPv6)}) }
	retry := watchRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.moved:
			full = NATs{}
			tell(full)
			retry = watchRetry
			timer.Reset(watchSettle)
			continue
		case <-w.recheck:
			retry = watchRetry
			timer.Reset(watchSettle)
			continue
		case <-timer.C:
		}
		switch n, answered, interrupted := w.look(ctx, inPart); {
		case interrupted: // the next round says why
		case answered:
			full = NATs{stun.Refine(full.IPv4, n.IPv4), stun.Refine(full.IPv6, n.IPv6)}
			tell(full)
			retry = watchRetry
			timer.Reset(watchEvery)
		default:
			timer.Reset(retry)
			retry = min(2*retry, watchEvery)
		}
	}
}

// look runs a discovery of both families. It reports whether any server answered, and whether the network changed
// meanwhile, so that the outcome means nothing.
func (w *NATWatch) look(ctx context.Context, inPart func(NATs)) (n NATs, answered, interrupted bool) {
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	parts := make(chan NATs)
	type outcome struct {
		n        NATs
		answered bool
	}
	whole := make(chan outcome, 1)
	go func() {
		n, answered := w.discover(ctx, func(part NATs) {
			select {
			case parts <- part:
			case <-ctx.Done():
			}
		})
		whole <- outcome{n, answered}
	}()
	for {
		select {
		case part := <-parts:
			inPart(part)
		case o := <-whole:
			return o.n, o.answered, false
		case <-w.moved:
			ring(w.moved)
			cancel()
			<-whole
			return NATs{}, false, true
		}
	}
}

// behave runs the discoveries of both families side by side.
func (w *NATWatch) behave(ctx context.Context, inPart func(NATs)) (n NATs, answered bool) {
	s := w.cfg.Surroundings(ctx)
	var mu sync.Mutex // of what follows
	var wg sync.WaitGroup
	for _, is6 := range []bool{false, true} {
		nat := &n.IPv4
		if is6 {
			nat = &n.IPv6
		}
		other := func(a netip.Addr) bool { return a.Unmap().Is6() != is6 }
		cfg := BehaviourConfig{
			Servers: slices.DeleteFunc(slices.Clone(s.Servers), func(a netip.AddrPort) bool { return other(a.Addr()) }),
			Local:   slices.DeleteFunc(slices.Clone(s.Local), other),
			Probers: slices.DeleteFunc(slices.Clone(s.Probers), func(p stun.Prober) bool { return other(p.Server.Addr()) }),
			Probe:   w.cfg.Probe,
			Device:  w.cfg.Device,
			Progress: func(r stun.Report) {
				mu.Lock()
				*nat = r.NAT
				part := n
				mu.Unlock()
				inPart(part)
			},
		}
		if len(cfg.Servers) == 0 || len(cfg.Local) == 0 {
			continue
		}
		wg.Go(func() {
			r, err := Behaviour(ctx, cfg)
			if err != nil {
				w.cfg.Logger.Debug("the NAT's behaviour cannot be found out", "ipv6", is6, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			*nat, answered = r.NAT, answered || len(r.Seen) > 0
		})
	}
	wg.Wait()
	return n, answered
}
