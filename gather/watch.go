package gather

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/stun"
)

const (
	// watchEvery is how often a NAT is looked at that nobody says has changed: a router's restart with other
	// settings is rare, and a discovery costs some 60 packets.
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
	Logger *slog.Logger // nil: none
}

// NATs are what is known of the NATs on the way out, per address family. The zero value is nothing.
type NATs struct{ IPv4, IPv6 weft.NAT }

// A NATWatch keeps finding out what the NATs on the way out do, in the background and on sockets of its own. It
// may be used by many goroutines at once.
type NATWatch struct {
	cfg     WatchConfig
	found   chan NATs
	recheck chan struct{}
	moved   chan struct{}
}

// WatchNAT begins a watch that ends with ctx: it looks at once, then whenever told to, and every 20 minutes.
func WatchNAT(ctx context.Context, cfg WatchConfig) *NATWatch {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &NATWatch{
		cfg: cfg, found: make(chan NATs, 1), recheck: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	go w.run(ctx)
	return w
}

// Found is what is known, whenever that changes: a channel of one place, where the new takes the place of what
// nobody fetched. It is closed when the watch ends.
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
	retry := watchRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.moved:
			tell(NATs{})
			retry = watchRetry
			timer.Reset(watchSettle)
			continue
		case <-w.recheck:
			retry = watchRetry
			timer.Reset(watchSettle)
			continue
		case <-timer.C:
		}
		n, answered, interrupted := w.look(ctx)
		switch {
		case interrupted:
			timer.Reset(watchSettle)
		case answered:
			tell(n)
			retry = watchRetry
			timer.Reset(watchEvery)
		default:
			timer.Reset(retry)
			retry = min(2*retry, watchEvery)
		}
	}
}

// look runs a discovery per address family, side by side. It reports whether any server answered, and whether the
// network changed meanwhile, so that the outcome means nothing.
func (w *NATWatch) look(ctx context.Context) (n NATs, answered, interrupted bool) {
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	type outcome struct {
		report stun.Report
		err    error
	}
	var families [2]chan outcome
	s := w.cfg.Surroundings(ctx)
	for i := range families {
		is6 := i == 1
		cfg := BehaviourConfig{
			Servers: slices.DeleteFunc(slices.Clone(s.Servers), func(a netip.AddrPort) bool { return a.Addr().Unmap().Is6() != is6 }),
			Local:   slices.DeleteFunc(slices.Clone(s.Local), func(a netip.Addr) bool { return a.Unmap().Is6() != is6 }),
			Probers: slices.DeleteFunc(slices.Clone(s.Probers), func(p stun.Prober) bool { return p.Server.Addr().Unmap().Is6() != is6 }),
			Probe:   w.cfg.Probe,
		}
		families[i] = make(chan outcome, 1)
		if len(cfg.Servers) == 0 || len(cfg.Local) == 0 {
			families[i] <- outcome{}
			continue
		}
		go func() {
			r, err := Behaviour(ctx, cfg)
			families[i] <- outcome{r, err}
		}()
	}
	for i, family := range families {
		var o outcome
		select {
		case o = <-family:
		case <-w.moved:
			ring(w.moved)
			interrupted = true
			cancel()
			o = <-family
		}
		if o.err != nil {
			w.cfg.Logger.Debug("the NAT's behaviour cannot be found out", "ipv6", i == 1, "error", o.err)
			continue
		}
		answered = answered || len(o.report.Seen) > 0
		if i == 0 {
			n.IPv4 = o.report.NAT
		} else {
			n.IPv6 = o.report.NAT
		}
	}
	return n, answered, interrupted
}
