package stun

import (
	"net/netip"
	"slices"
	"time"

	"weft"
)

// survey asks the next server, or the alternates of one that has answered.
func (d *Discovery) survey() bool {
	if len(d.waiting) > 0 {
		return false
	}
	before := len(d.waiting)
	var addrs []netip.Addr
	for _, q := range d.questions {
		if !q.answered || !slices.Contains(d.cfg.Servers, q.to) {
			continue
		}
		others := alternates(q)
		if len(others) > 0 && !slices.Contains(addrs, plainAddr(q.to)) {
			addrs = append(addrs, plainAddr(q.to))
		}
		if len(addrs) > surveyed {
			break
		}
		for _, a := range others {
			if d.find(0, a, 0) == nil {
				d.ask(0, a, 0)
			}
		}
	}
	if len(d.waiting) > before {
		return true
	}
	for d.asked < len(d.cfg.Servers) && !d.enough() {
		s := d.cfg.Servers[d.asked]
		d.asked++
		if d.find(0, s, 0) == nil {
			d.ask(0, s, 0)
			return true
		}
	}
	return false
}

// enough reports whether no further server would tell more.
func (d *Discovery) enough() bool {
	d.chooseBase()
	return d.base != nil && d.value(d.base) >= valueAlternatePort+valueProber && d.Report().Mapping != weft.MappingUnknown
}

// alternates are the other addresses and ports that a server answers at.
func alternates(q *question) []netip.AddrPort {
	addr, port, other := q.to.Addr(), q.to.Port(), q.result.Other
	if trustworthy(q.to, other) {
		return []netip.AddrPort{ // tests II and III of RFC 5780, 4.3, and the fourth socket
			netip.AddrPortFrom(plainAddr(other), port), netip.AddrPortFrom(plainAddr(other), other.Port()),
			netip.AddrPortFrom(addr, other.Port()),
		}
	}
	if p := q.result.Port; p != 0 && p != port {
		return []netip.AddrPort{netip.AddrPortFrom(addr, p)}
	}
	return nil
}

// trustworthy reports whether a server's claim of an alternate address can be
// believed: it differs in address and port, and it is not a way to make us send
// to ourselves.
func trustworthy(server, other netip.AddrPort) bool {
	a, b := plainAddr(server), plainAddr(other)
	return usable(other) && a != b && server.Port() != other.Port() &&
		a.Is4() == b.Is4() && (a.IsLoopback() || !b.IsLoopback())
}

// What a server is worth to the tests.
const (
	valueProber           = 1 // there is a prober at another address
	valueAlternatePort    = 2
	valueAlternateAddress = 4
)

func (d *Discovery) value(q *question) (v int) {
	if d.proberBeside(q.to) != nil {
		v += valueProber
	}
	switch {
	case trustworthy(q.to, q.result.Other):
		v += valueAlternateAddress
	case q.result.Port != 0:
		v += valueAlternatePort
	}
	return v
}

// chooseBase picks the server that is worth most, of equals the first.
func (d *Discovery) chooseBase() {
	for _, q := range d.questions {
		if q.phase == phaseSurvey && q.answered && slices.Contains(d.cfg.Servers, q.to) &&
			(d.base == nil || d.value(q) > d.value(d.base)) {
			d.base = q
		}
	}
}

// proberBeside is the first prober at another address than that server's which has
// answered itself: what it sends can reach us.
func (d *Discovery) proberBeside(server netip.AddrPort) *Prober {
	for i, p := range d.cfg.Probers {
		q := d.find(0, p.Server, 0)
		if plainAddr(p.Server) != plainAddr(server) && q != nil && q.answered {
			return &d.cfg.Probers[i]
		}
	}
	return nil
}

// staggered is until when the survey waits for servers that have not answered; the
// zero time if for none.
func (d *Discovery) staggered(now time.Time) (until time.Time) {
	for _, q := range d.questions {
		if at := q.begun.Add(discoveryStagger); !q.over && now.Before(at) && at.After(until) {
			until = at
		}
	}
	return until
}
