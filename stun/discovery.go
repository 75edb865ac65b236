package stun

import (
	"net/netip"
	"slices"
	"time"

	"weft"
)

const (
	// Discovery rests on silence, so it can't wait for RFC 8489's 39.5 s: four
	// copies at 0, 200, 600 and 1,400 ms, given up after 2.2 s. A loss of 10 % each
	// way then passes for silence once in about 770 questions.
	discoveryRTO = 200 * time.Millisecond
	discoveryRc  = 4
	discoveryRm  = 4

	// discoveryPace is the least time between the starts of two transactions: no
	// more than ten a second, and out of step with the retransmissions (RFC 5780,
	// section 5).
	discoveryPace = 130 * time.Millisecond

	// discoveryStagger is how long a server may be silent before the next one of
	// the list is tried beside it: three copies sent and not answered.
	discoveryStagger = 600 * time.Millisecond
)

// DiscoverySockets is how many sockets a Discovery makes use of: one sees every server; the others see one server
// in the order of their numbers, which shows how ports are allocated, and then serve the tests of the filter and
// of hairpinning.
const DiscoverySockets = 7

// DiscoveryConfig says whom to ask, and of which sockets.
type DiscoveryConfig struct {
	// Servers are asked in this order, of one address family. The more they differ in address and port, the more
	// is learnt. One with an alternate address (RFC 5780) is enough for everything; of one with an alternate port
	// (AttrAlternatePort) both ports are asked.
	Servers []netip.AddrPort

	// Probers are those of Servers that the caller can ask to send us a packet that nobody here asked them for:
	// see Action. Seen is the address at which the server knows us, to which it sends.
	Probers []Prober

	// Local are the machine's own addresses of that family. Without them NoNAT can't be found.
	Local []netip.Addr

	// Ports are the local ports of the sockets, at most DiscoverySockets, bound to no address, of which none has
	// ever sent anything. With one of them only the mapping is found; the more, the more.
	Ports []uint16

	// Transaction says how to ask; each zero field takes discovery's own default:
	// an RTO of 200 ms, 4 requests, 4 RTOs of patience. Change is set by the tests.
	Transaction TransactionConfig
}

// A Prober is a server that sends probes to order.
type Prober struct {
	Server netip.AddrPort // one of DiscoveryConfig.Servers
	Seen   netip.Addr     // at which the server knows us
}

// An Action is one thing that a Discovery wants done. The zero Action is nothing.
type Action struct {
	// Packet is to be sent to To by the socket whose port is Ports[Socket]. It must not be changed.
	Socket int
	Packet []byte
	To     netip.AddrPort

	// Probe, if it has a port, asks for something else: that the relay whose STUN address is To sends to this
	// port of the address at which it knows us, and from that STUN address, the answer to a binding request with
	// this ID that nobody sent. The caller answers by Probed.
	Probe Probe
}

// A Probe is a datagram that a server is to send to a port of ours.
type Probe struct {
	ID   TransactionID
	Port uint16
}

// Report is what a Discovery knows so far, and at its end what it found.
type Report struct {
	weft.NAT
	Varies bool          // different servers saw different mappings: see MappingVaries
	Seen   []Observation // what servers saw, in the order they were asked
}

// Discovery finds out what the NAT in front of one socket does: RFC 5780, 4.3 and
// 4.4, where a server has an alternate address, and the comparison of servers
// otherwise. The filtering tests come first, because every packet sent to an
// alternate address opens the filter for it. One goroutine at a time may use it.
type Discovery struct {
	cfg     DiscoveryConfig
	phase   phase
	asked   int            // how many of cfg.Servers were asked, or left out
	base    *probe         // the answer of the server that the tests use
	other   netip.AddrPort // its alternate address and port
	probes  []*probe       // every question so far
	waiting []*probe       // those that the pace holds back
	resume  time.Time      // when the pace allows the next
}

type phase uint8

const (
	finding   phase = iota // asking servers until one has an alternate address
	filtering              // is an unexpected answer let in?
	mapping                // what do the alternate addresses see? are they there at all?
	comparing              // what do the servers not yet asked see?
	finished
)

// probe is one question of a discovery.
type probe struct {
	phase    phase // in which it was asked
	to       netip.AddrPort
	change   Change
	tx       *Transaction // nil until the pace allows it
	begun    time.Time
	over     bool
	answered bool // with a mapped address
	result   Result
}

// silent reports whether nothing at all came back.
func (p *probe) silent() bool { return p.over && p.tx.Err() == ErrTimeout }

// NewDiscovery prepares a discovery that begins now.
func NewDiscovery(now time.Time, cfg DiscoveryConfig) *Discovery {
	t := &cfg.Transaction
	if t.RTO <= 0 {
		t.RTO = discoveryRTO
	}
	if t.Rc <= 0 {
		t.Rc = discoveryRc
	}
	if t.Rm <= 0 {
		t.Rm = discoveryRm
	}
	cfg.Servers = slices.Clone(cfg.Servers)
	return &Discovery{cfg: cfg, resume: now}
}

// Poll returns what to do now, nothing if it has neither packet nor probe; when to poll again; and whether the
// discovery is over. Poll again at once after an action: there may be another.
func (d *Discovery) Poll(now time.Time) (a Action, next time.Time, done bool) {
	for {
		d.advance(now)
		if d.phase == finished {
			return Action{}, time.Time{}, true
		}
		changed := false
		next = time.Time{}
		for _, p := range d.probes {
			if p.over {
				continue
			}
			pkt, at, over := p.tx.Poll(now)
			if pkt != nil {
				return Action{Packet: pkt, To: p.to}, now, false
			}
			if over {
				p.over, changed = true, true
				continue
			}
			next = sooner(next, at)
		}
		if changed {
			continue // an end may be the beginning of the next phase
		}
		if len(d.waiting) > 0 {
			next = sooner(next, d.resume)
		}
		if d.phase == finding && d.asked < len(d.cfg.Servers) {
			next = sooner(next, d.staggered())
		}
		return Action{}, next, false
	}
}

// Probed is the caller's answer to an Action with a Probe: the relay says that it has sent it, or it has not, or
// nothing is known of it. It may come before the probe or after, and must come in the end.
func (d *Discovery) Probed(now time.Time, id TransactionID, sent bool) {}

// Handle takes a datagram that came from `from` to the socket of that number. It is true if it was meant for the
// discovery; poll again then. Anything else is left to others.
func (d *Discovery) Handle(now time.Time, socket int, pkt []byte, from netip.AddrPort) bool {
	for _, p := range d.probes {
		r, ok := p.tx.Handle(now, pkt, from)
		if ok {
			p.over, p.result, p.answered = true, r, r.Code == 0
			return true
		}
	}
	return false
}

// Report may be asked for at any time.
func (d *Discovery) Report() Report {
	r := Report{NAT: weft.NAT{Filtering: d.filtering()}}
	for _, p := range d.probes {
		if p.answered && p.change == 0 {
			r.Seen = append(r.Seen, Observation{Server: p.to, Mapped: p.result.Mapped})
		}
	}
	r.Mapping = ClassifyMapping(r.Seen, d.local(0)...)
	r.Varies = MappingVaries(r.Seen)
	return r
}

// local are the addresses of a socket.
func (d *Discovery) local(socket int) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range d.cfg.Local {
		if socket < len(d.cfg.Ports) {
			out = append(out, netip.AddrPortFrom(a, d.cfg.Ports[socket]))
		}
	}
	return out
}

// advance begins what can begin now.
func (d *Discovery) advance(now time.Time) {
	for d.step(now) {
	}
	for len(d.waiting) > 0 && !now.Before(d.resume) {
		p := d.waiting[0]
		d.waiting = d.waiting[1:]
		cfg := d.cfg.Transaction
		cfg.Request.Change = p.change
		p.tx, p.begun = NewTransaction(now, p.to, cfg), now
		d.probes = append(d.probes, p)
		d.resume = now.Add(discoveryPace)
	}
}

// step moves to the next phase, or asks the next server, if it is time to.
func (d *Discovery) step(now time.Time) bool {
	switch d.phase {
	case finding:
		d.chooseBase()
		switch {
		case d.base != nil && (d.untouched(d.base) || !(len(d.cfg.Ports) > 1)):
			// A server held back by the pace stays unasked: it may be the
			// alternate address itself.
			d.asked -= len(d.waiting)
			d.waiting = nil
			d.phase = filtering
		case d.asked < len(d.cfg.Servers):
			if len(d.waiting) > 0 || now.Before(d.staggered()) {
				return false
			}
			d.ask(d.cfg.Servers[d.asked], 0)
			d.asked++
			return true
		case d.busy(finding):
			return false
		default:
			d.phase = filtering
		}
		if d.phase == filtering && (len(d.cfg.Ports) > 1) && d.base != nil && d.untouched(d.base) {
			d.ask(d.base.to, ChangeIP|ChangePort)
			d.ask(d.base.to, ChangePort)
		}
		return true
	case filtering:
		if d.busy(filtering) {
			return false
		}
		d.phase = mapping
		if d.base != nil {
			addr, port := d.base.to.Addr(), d.base.to.Port()
			d.ask(netip.AddrPortFrom(d.other.Addr(), port), 0) // test II of 4.3
			d.ask(d.other, 0)                                  // test III
			d.ask(netip.AddrPortFrom(addr, d.other.Port()), 0) // is the silent one there?
		}
		return true
	case mapping:
		if d.busy(mapping) {
			return false
		}
		d.phase = comparing
		if d.Report().Mapping == weft.MappingUnknown {
			for _, s := range d.cfg.Servers[d.asked:] {
				d.ask(s, 0)
			}
			d.asked = len(d.cfg.Servers)
		}
		return true
	case comparing:
		if d.busy(finding) && d.Report().Mapping == weft.MappingUnknown {
			return false
		}
		d.phase = finished
	}
	return false
}

// busy reports whether a question of that phase or a later one is open or held
// back: a dead server, asked while finding, must not hold up the tests.
func (d *Discovery) busy(since phase) bool {
	open := func(p *probe) bool { return !p.over && p.phase >= since }
	return slices.ContainsFunc(d.waiting, open) || slices.ContainsFunc(d.probes, open)
}

// ask queues a question, unless the same was asked before.
func (d *Discovery) ask(to netip.AddrPort, change Change) {
	if d.find(to, change) == nil {
		d.waiting = append(d.waiting, &probe{phase: d.phase, to: to, change: change})
	}
}

func (d *Discovery) find(to netip.AddrPort, change Change) *probe {
	is := func(p *probe) bool { return same(p.to, to) && p.change == change }
	if i := slices.IndexFunc(d.probes, is); i >= 0 {
		return d.probes[i]
	}
	if i := slices.IndexFunc(d.waiting, is); i >= 0 {
		return d.waiting[i]
	}
	return nil
}

// staggered is when the next server may be asked: at once if the last one has
// answered or failed.
func (d *Discovery) staggered() time.Time {
	if n := len(d.probes); n > 0 && !d.probes[n-1].over {
		return d.probes[n-1].begun.Add(discoveryStagger)
	}
	return time.Time{}
}

// chooseBase picks the first server with an alternate address that has not been
// sent to, or failing that the first with an alternate address.
func (d *Discovery) chooseBase() {
	for _, p := range d.probes {
		if !p.answered || !trustworthy(p.to, p.result.Other) {
			continue
		}
		if d.base == nil || !d.untouched(d.base) && d.untouched(p) {
			d.base = p
			d.other = netip.AddrPortFrom(plainAddr(p.result.Other), p.result.Other.Port())
		}
	}
}

// untouched reports whether nothing was sent to the alternates of that server yet.
func (d *Discovery) untouched(p *probe) bool {
	other := p.result.Other
	return !slices.ContainsFunc(d.probes, func(q *probe) bool {
		return plainAddr(q.to) == plainAddr(other) ||
			plainAddr(q.to) == plainAddr(p.to) && q.to.Port() == other.Port()
	})
}

// sooner is the earlier of two times, of which the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// trustworthy reports whether a server's claim of an alternate address can be
// believed: it differs in address and port, and it is not a way to make us send
// to ourselves.
func trustworthy(server, other netip.AddrPort) bool {
	a, b := plainAddr(server), plainAddr(other)
	return usable(other) && a != b && server.Port() != other.Port() &&
		a.Is4() == b.Is4() && (a.IsLoopback() || !b.IsLoopback())
}

// filtering judges RFC 5780's filtering tests.
func (d *Discovery) filtering() weft.Filtering {
	if d.base == nil {
		return weft.FilteringUnknown
	}
	server := d.base.to
	otherPort := netip.AddrPortFrom(server.Addr(), d.other.Port())
	both, port := d.find(server, ChangeIP|ChangePort), d.find(server, ChangePort)
	if both == nil || port == nil {
		return weft.FilteringUnknown
	}
	there := func(a netip.AddrPort) bool {
		p := d.find(a, 0)
		return p != nil && p.answered
	}
	letIn := func(p *probe, from netip.AddrPort) bool { return p.answered && same(p.result.From, from) }
	switch {
	case letIn(both, d.other):
		return weft.EndpointIndependentFiltering
	case letIn(port, otherPort) && both.silent() && there(d.other):
		return weft.AddressDependentFiltering
	case port.silent() && there(otherPort):
		return weft.AddressAndPortDependentFiltering
	}
	return weft.FilteringUnknown
}
