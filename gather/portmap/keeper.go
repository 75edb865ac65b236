package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft/host"
)

// timing are the intervals of a client; tests have shorter ones.
type timing struct {
	lifetime time.Duration // that is asked for
	check    time.Duration // how often a mapping is looked after
	least    time.Duration // a mapping for less than this is none
	first    time.Duration // the wait after the first failure, which doubles up to
	last     time.Duration
	gateways time.Duration // how often the default routes are looked at without a nudge
	answer   time.Duration // the wait for the first answer of PCP and NAT-PMP, which doubles
	tries    int           // how often they are asked
	search   time.Duration // the wait for answers to a UPnP search
	request  time.Duration // of one UPnP request
	leave    time.Duration // for taking mappings away at the end
	gap      time.Duration // between two looks, however often somebody nudges
}

var defaultTiming = timing{
	lifetime: 2 * time.Hour, // RFC 6886 section 3.3 recommends 7,200 s
	check:    time.Minute,
	least:    10 * time.Second,
	first:    5 * time.Second,
	last:     10 * time.Minute, // a router that offers nothing is asked again: UPnP may be switched on
	gateways: 5 * time.Minute,  // the daemon nudges when a route changes
	answer:   250 * time.Millisecond,
	tries:    3, // RFC 6886 section 3.1 doubles from 250 ms; 1.75 s in all, and UPnP waits for that
	search:   2 * time.Second,
	request:  5 * time.Second,
	leave:    2 * time.Second,
	gap:      time.Second,
}

// A lease is what a protocol got of a router.
type lease struct {
	external netip.AddrPort
	renew    time.Time // half its life
	until    time.Time
	forever  bool // UPnP v1 routers may know only mappings without an end
}

// protocol is a way to have a port mapped, at one router that is known to speak it. One goroutine uses it.
type protocol interface {
	name() Protocol
	// apply makes a mapping, or renews it. Suggested is the external port that is wished for.
	apply(ctx context.Context, suggested uint16) (lease, error)
	// refresh looks whether a mapping stands and its external address is the same, makes it anew if it does not,
	// and renews it when half its life is over.
	refresh(ctx context.Context, l lease) (lease, error)
	// remove takes a mapping away.
	remove(ctx context.Context, l lease) error
	close()
}

var (
	errNone     = errors.New("the router offers none of PCP, NAT-PMP and UPnP, or they are switched off: switch one on there, or forward the UDP port by hand")
	errNotThere = errors.New("not offered")
)

// keeper keeps the port mapped at one gateway.
type keeper struct {
	gateway host.Gateway
	port    uint16
	timing  timing
	log     *slog.Logger
	stop    context.CancelFunc
	ways    []way
	nudged  chan struct{}
	state   State // as the client knows it
}

// A way finds out whether a router speaks a protocol: errNotThere where it does not.
type way func(context.Context, host.Gateway, uint16, timing) (protocol, error)

// allWays are in the order of Protocol's constants.
var allWays = []way{findPCP, findNATPMP, findUPnP}

func newKeeper(g host.Gateway, c *Client, stop context.CancelFunc) *keeper {
	return &keeper{
		gateway: g, port: c.cfg.Port, timing: c.timing, ways: c.ways, log: c.cfg.Logger.With("gateway", g.Addr.String()), stop: stop,
		nudged: make(chan struct{}, 1), state: State{Gateway: g.Addr},
	}
}

func (k *keeper) nudge() {
	select {
	case k.nudged <- struct{}{}:
	default:
	}
}

// run goes on until ctx ends.
func (k *keeper) run(ctx context.Context, tell func(State)) {
	wait := k.timing.first
	for ctx.Err() == nil {
		p, l, err := k.find(ctx)
		if err == nil {
			wait = k.timing.first
			err = k.keep(ctx, p, l, tell)
			p.close()
		}
		if ctx.Err() != nil {
			return
		}
		k.log.Debug("no port mapping", "error", err)
		tell(State{Gateway: k.gateway.Addr, Problem: err.Error()})
		k.wait(ctx, wait/2+rand.N(wait))
		wait = min(2*wait, k.timing.last)
	}
}

// keep looks after a mapping until it is lost or ctx ends.
func (k *keeper) keep(ctx context.Context, p protocol, l lease, tell func(State)) error {
	defer func() {
		if time.Now().After(l.until) && !l.forever {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.timing.leave)
		defer cancel()
		if err := p.remove(ctx, l); err != nil {
			k.log.Debug("the port mapping stays until it ends", "protocol", p.name(), "external", l.external.String(), "error", err)
		}
	}()
	failed := 0
	for told := (State{}); ; {
		s := State{Gateway: k.gateway.Addr, Mapping: k.mapping(p, l)}
		if s.Mapping.External != told.Mapping.External {
			k.log.Info("port mapped", "protocol", p.name(), "external", l.external.String(), "double_nat", s.Mapping.DoubleNAT)
		}
		if s != told {
			told = s
			tell(s)
		}
		next := min(k.timing.check, time.Until(l.renew))
		if failed > 0 {
			next = min(k.timing.first<<min(failed, 10), k.timing.check)
		}
		k.wait(ctx, max(next, k.timing.gap))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fresh, err := p.refresh(ctx, l)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			l, failed = fresh, 0
		case !time.Now().Before(l.until) && !l.forever:
			return fmt.Errorf("the port mapping ended and could not be renewed: %w", err)
		default:
			// It may stand although the router does not answer. Three times, and it is looked for anew.
			if failed++; failed >= 3 {
				return fmt.Errorf("the router does not look after the port mapping any more: %w", err)
			}
		}
	}
}

func (k *keeper) mapping(p protocol, l lease) Mapping {
	return Mapping{
		Protocol: p.name(), Internal: netip.AddrPortFrom(k.gateway.Local, k.port), External: l.external,
		DoubleNAT: behindNAT(l.external.Addr()),
	}
}

// wait waits, but not longer than to a nudge, and for the gap at least.
func (k *keeper) wait(ctx context.Context, d time.Duration) {
	began := time.Now()
	select {
	case <-ctx.Done():
	case <-k.nudged:
		select {
		case <-ctx.Done():
		case <-time.After(k.timing.gap - time.Since(began)):
		}
	case <-time.After(d):
	}
}

// find asks in all ways at once and returns a mapping by the best that there is.
func (k *keeper) find(ctx context.Context) (protocol, lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type found struct {
		p   protocol
		err error
	}
	results := make([]chan found, len(k.ways))
	for i, way := range k.ways {
		results[i] = make(chan found, 1)
		go func() {
			p, err := way(ctx, k.gateway, k.port, k.timing)
			results[i] <- found{p, err}
		}()
	}
	var wrong error // the best answer of a router that speaks a protocol, and does not map
	note := func(err error) {
		if wrong == nil && !errors.Is(err, errNotThere) {
			wrong = err
		}
	}
	for i := range results {
		f := <-results[i]
		if f.err != nil {
			note(f.err)
			continue
		}
		l, err := f.p.apply(ctx, k.port)
		if err == nil {
			cancel()
			for _, rest := range results[i+1:] {
				go func() {
					if f := <-rest; f.p != nil {
						f.p.close()
					}
				}()
			}
			return f.p, l, nil
		}
		f.p.close()
		note(err)
	}
	if wrong == nil {
		wrong = errNone
	}
	return nil, lease{}, wrong
}

// leaseOf checks what a router granted.
func (t timing) leaseOf(external netip.AddrPort, lifetime time.Duration, now time.Time) (lease, error) {
	if external.Port() == 0 {
		return lease{}, errors.New("the router mapped port 0, which is none")
	}
	if err := checkExternal(external.Addr()); err != nil {
		return lease{}, err
	}
	if lifetime < t.least {
		return lease{}, fmt.Errorf("the router maps a port for %v only, which is too short to be renewed", lifetime)
	}
	lifetime = min(lifetime, 24*time.Hour) // RFC 6887 section 15: what a server says beyond is not believed
	return lease{external: external, renew: now.Add(lifetime / 2), until: now.Add(lifetime)}, nil
}

// checkExternal refuses addresses that no packet can have on the internet or on a network of a provider.
func checkExternal(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return errors.New("the router has no external address: it is not connected")
	case !a.Is4() || a.IsLoopback() || a.IsMulticast() || a.As4()[0] == 0 || a.As4()[0] >= 240:
		return fmt.Errorf("the router says that its external address is %s, which is none", a)
	}
	return nil
}

// sharedSpaces are IPv4 ranges beside the private ones that are in use behind NATs: of providers (RFC 6598), and
// between a home and the gateway of a network without IPv4 (RFC 7335).
var sharedSpaces = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/29")}

// behindNAT reports whether an external address is itself translated.
func behindNAT(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLinkLocalUnicast() || sharedSpaces[0].Contains(a) || sharedSpaces[1].Contains(a)
}
