package sim

import (
	"cmp"
	"net/netip"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/stun"
)

// When the daemon looks at its NAT: watchEvery, watchRetry, watchSettle and watchPatience of package gather.
const (
	natEvery    = 20 * time.Minute
	natRetry    = 15 * time.Second
	natSettle   = 500 * time.Millisecond
	natPatience = 20 * time.Second
)

// A natWatch keeps finding out what the NATs in front of a link do, for IPv4: of IPv6, which nobody translates, its
// agents make no use. It is gather.NATWatch without goroutines.
type natWatch struct {
	l       *link
	known   weft.NAT  // as the agents know it
	full    weft.NAT  // what the last look that came to its end found
	at      time.Time // of the next look; zero: one is under way
	retry   time.Duration
	again   bool // somebody asked for another look
	look    *stun.Discovery
	sockets []*vnet.Socket
	until   time.Time // of the look
}

// recheck looks again soon: servers came or went.
func (w *natWatch) recheck(now time.Time) {
	w.retry = natRetry
	if w.look != nil {
		w.again = true
		return
	}
	w.at = now.Add(natSettle)
}

// moved forgets what is known, and looks again.
func (w *natWatch) moved(now time.Time) {
	w.close()
	w.full = weft.NAT{}
	w.tell(now, w.full)
	w.recheck(now)
}

// close ends a look under way.
func (w *natWatch) close() {
	for _, s := range w.sockets {
		s.Close()
	}
	w.look, w.sockets, w.again = nil, nil, false
}

// poll does what is due, and returns when to be called again.
func (w *natWatch) poll(now time.Time) time.Time {
	if w.look == nil {
		if w.at.IsZero() || now.Before(w.at) {
			return w.at
		}
		w.begin(now)
	}
	for w.look != nil {
		a, next, done := w.look.Poll(now)
		switch {
		case done || !now.Before(w.until):
			w.end(now)
		case a.Probe.Port != 0:
			look := w.look
			w.l.n.probe(now, a.To, a.Probe, func(now time.Time, sent bool) { look.Probed(now, a.Probe.ID, sent) })
		case a.Packet != nil:
			if a.Socket < len(w.sockets) {
				w.l.n.w.transmit(w.sockets[a.Socket], a.To, a.Packet, 0, "STUN discovery")
			}
		default:
			w.tell(now, cmp.Or(w.full, w.look.Report().NAT)) // what is known already, as soon as it is
			if next.IsZero() || next.After(w.until) {
				return w.until
			}
			return next
		}
	}
	return w.at
}

// begin looks, from fresh sockets.
func (w *natWatch) begin(now time.Time) {
	var cfg stun.DiscoveryConfig
	for _, r := range w.l.n.relays {
		for _, a := range r.addrs {
			if a.Addr().Is4() {
				cfg.Servers = append(cfg.Servers, a)
			}
		}
		if r.boundTo.IsValid() && r.observed.IsValid() && r.link == w.l.id {
			cfg.Probers = append(cfg.Probers, stun.Prober{Server: r.boundTo, Seen: r.observed.Addr()})
		}
	}
	for _, a := range w.l.addrs() {
		if a.Is4() {
			cfg.Local = append(cfg.Local, a)
		}
	}
	for range stun.DiscoverySockets {
		s, err := w.l.listen(0)
		if err != nil {
			break
		}
		i := len(w.sockets)
		s.Handle(func(now time.Time, from netip.AddrPort, b []byte) {
			if w.look != nil && w.look.Handle(now, i, b, from) {
				w.l.n.work(now)
			}
		})
		w.sockets = append(w.sockets, s)
		cfg.Ports = append(cfg.Ports, s.Port())
	}
	w.look, w.until, w.at, w.again = stun.NewDiscovery(now, cfg), now.Add(natPatience), time.Time{}, false
}

// end takes in what was found.
func (w *natWatch) end(now time.Time) {
	r, again := w.look.Report(), w.again
	w.close()
	switch {
	case len(r.Seen) > 0:
		w.full = stun.Refine(w.full, r.NAT)
		w.tell(now, w.full)
		w.retry, w.at = natRetry, now.Add(natEvery)
	default:
		w.at = now.Add(w.retry)
		w.retry = min(2*w.retry, natEvery)
	}
	if again {
		w.at = now.Add(natSettle)
	}
}

// tell tells the agents.
func (w *natWatch) tell(now time.Time, n weft.NAT) {
	if n == w.known {
		return
	}
	w.known = n
	w.l.n.log("the NAT in front of %s: %v", w.l.name(), n)
	w.l.n.tellNATs(now)
}
