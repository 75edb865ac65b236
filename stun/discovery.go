package stun

import (
	"net/netip"
	"slices"
	"time"

	"weft"
)

const (
	// Discovery rests on silence, so it can't wait for RFC 8489's 39.5 s: four
	// copies at 0, 200, 600 and 1,400 ms, given up after 2.2 s, and all of it
	// slower where answers take longer than 100 ms (see rto).
	discoveryRTO = 200 * time.Millisecond
	discoveryRc  = 4
	discoveryRm  = 4

	// slowestRTO bounds what a long way makes of discoveryRTO: a geostationary
	// satellite's round trip takes 600 ms.
	slowestRTO = time.Second

	// discoveryPace is the least time between the starts of two transactions: no
	// more than ten a second, and out of step with the retransmissions (RFC 5780,
	// section 5).
	discoveryPace = 130 * time.Millisecond

	// discoveryStagger is how long a server may be silent before the survey goes on
	// without it: three copies sent and not answered.
	discoveryStagger = 600 * time.Millisecond

	// surveyed is how many servers' alternates are asked: those of two addresses
	// tell all that there is to know.
	surveyed = 2

	// givenUp is how many sockets the base leaves without an answer before no more
	// are tried: a NAT whose table is full.
	givenUp = 2
)

// DiscoverySockets is how many sockets a Discovery makes use of: one asks every
// server. The others ask one server, one after the other, which shows how ports are
// allocated, and then serve the tests of the filter and of hairpinning.
const DiscoverySockets = 7

// DiscoveryConfig says whom to ask, and of which sockets.
type DiscoveryConfig struct {
	// Servers are asked in this order, of one address family. The more they
	// differ in address and port, the more is learnt: one with an alternate
	// address (RFC 5780) is enough for everything, and so are two with an
	// alternate port (AttrAlternatePort) if one of them is a Prober.
	Servers []netip.AddrPort

	// Probers are those of Servers that the caller can have send us a packet that
	// no packet of ours asked for: see Action.
	Probers []Prober

	// Local are the machine's own addresses. Without them NoNAT can't be found.
	Local []netip.Addr

	// Ports are the local ports of the sockets, at most DiscoverySockets, bound to
	// no address, at ports of the system's choice. None of them has sent anything
	// for as long as a mapping may live (RFC 5780, 4.1, has 15 minutes), or the NAT
	// will look too open. One is enough for the mapping, two for the filtering,
	// four for hairpinning and for the allocation of ports; all make it surer.
	Ports []uint16

	// Transaction says how to ask; each zero field takes discovery's own default:
	// an RTO of 200 ms, 4 requests, 4 RTOs of patience. Change is set by the tests.
	Transaction TransactionConfig
}

// A Prober is a server that sends a Probe to order.
type Prober struct {
	Server netip.AddrPort // one of DiscoveryConfig.Servers
	Seen   netip.Addr     // where the server knows us and would send it: our outside address
}

// An Action is one thing that a Discovery wants done. The zero Action is nothing.
type Action struct {
	// Packet is to be sent to To by the socket whose port is Ports[Socket]. It
	// must not be changed.
	Socket int
	Packet []byte
	To     netip.AddrPort

	// Probe, if it has a port, wants something else: that the Prober whose Server
	// is To sends, from that address, the answer to a binding request with this ID
	// that nobody sent, to this port of the address where it knows us. The caller
	// answers by Probed.
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
	Seen   []Observation // what servers saw of the first socket, in the order of the answers

	// Outside are the addresses that servers saw of any socket, sorted. More than
	// one at a time is arbitrary pooling (RFC 4787, section 4.1). That there is just
	// one does not show that there is no other.
	Outside []netip.Addr
}

// Discovery finds out what the NAT in front of some sockets does, in four steps:
//
//	survey    the first socket asks all servers, at all their addresses and ports
//	allocate  the others ask one server, one after the other: RFC 4787's port assignment
//	test      one of these waits for answers that the filter may not let in (RFC 5780,
//	          4.4), and two of them talk to each other by their outside addresses
//	confirm   the sockets ask again: was what was silence due to the NAT, and is it
//	          still the same NAT?
//
// A socket that has been sent to unasked takes no part in judging the mapping: a
// NAT may let its answers leave by where the packet came in. One goroutine at a
// time may use a Discovery.
type Discovery struct {
	cfg    DiscoveryConfig
	phase  phase
	asked  int       // how many of cfg.Servers were asked
	base   *question // the answer of the server that the tests use
	filter *question // base's answer to the socket of the filter tests
	order  *order    // the test by a prober; nil: none
	loop   *loop     // the test of hairpinning; nil: none

	questions []*question // every one so far
	waiting   []*question // those that the pace holds back
	resume    time.Time   // when the pace allows the next
	way       way
}

type phase uint8

const (
	phaseSurvey phase = iota
	phaseAllocate
	phaseTest
	phaseConfirm
	phaseOver
)

// question is one question of a discovery.
type question struct {
	phase    phase // in which it was asked
	socket   int
	to       netip.AddrPort
	change   Change
	tx       *Transaction // nil until the pace allows it
	begun    time.Time
	timely   bool // begun when it was known how long answers take
	over     bool
	answered bool // with a mapped address
	result   Result
}

// silent reports whether nothing at all came back.
func (q *question) silent() bool { return q.over && q.tx.Err() == ErrTimeout }

// letIn reports whether it was answered from there.
func (q *question) letIn(from netip.AddrPort) bool { return q.answered && same(q.result.From, from) }

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
	cfg.Ports = slices.Clone(cfg.Ports[:min(len(cfg.Ports), DiscoverySockets)])
	return &Discovery{cfg: cfg, resume: now}
}

// Poll returns what to do now, nothing if it has neither packet nor probe; when to
// poll again; and whether the discovery is over. Poll again at once after an
// action: there may be another.
func (d *Discovery) Poll(now time.Time) (a Action, next time.Time, done bool) {
	for {
		d.advance(now)
		if d.phase == phaseOver {
			return Action{}, time.Time{}, true
		}
		changed := false
		next = time.Time{}
		for _, q := range d.questions {
			if q.over {
				continue
			}
			pkt, at, over := q.tx.Poll(now)
			if pkt != nil {
				return Action{Socket: q.socket, Packet: pkt, To: q.to}, now, false
			}
			if over {
				q.over, changed = true, true
				continue
			}
			next = sooner(next, at)
		}
		for _, t := range []interface {
			poll(time.Time) (Action, time.Time, bool)
		}{d.order, d.loop} {
			a, at, over := t.poll(now)
			if a.Packet != nil || a.Probe.Port != 0 {
				return a, now, false
			}
			changed = changed || over
			next = sooner(next, at)
		}
		if changed {
			continue // an end may be the beginning of the next phase
		}
		if len(d.waiting) > 0 {
			next = sooner(next, d.resume)
		}
		if d.phase == phaseSurvey {
			next = sooner(next, d.staggered(now))
		}
		return Action{}, next, false
	}
}

// Handle takes a datagram that came from `from` to the socket of that number. It is
// true if it was meant for the discovery; poll again then. Anything else is left to
// others.
func (d *Discovery) Handle(now time.Time, socket int, pkt []byte, from netip.AddrPort) bool {
	for _, q := range d.questions {
		if q.socket != socket {
			continue
		}
		if r, ok := q.tx.Handle(now, pkt, from); ok {
			q.over, q.result, q.answered = true, r, r.Code == 0
			d.way.heard(q, now)
			return true
		}
	}
	return d.order.handle(socket, pkt, from) || d.loop.handle(socket, pkt)
}

// Probed is the caller's answer to an Action with a Probe: the server says that it
// has sent it, or it says otherwise or nothing. It may come before the probe or
// after, and must come in the end. Probe by probe, for each action one.
func (d *Discovery) Probed(now time.Time, id TransactionID, sent bool) {
	d.order.probed(now, id, sent)
}

// Report may be asked for at any time.
func (d *Discovery) Report() Report {
	var r Report
	for _, q := range d.questions {
		if !q.answered || q.change != 0 {
			continue
		}
		if q.socket == 0 {
			r.Seen = append(r.Seen, Observation{Server: q.to, Mapped: q.result.Mapped})
		}
		if a := plainAddr(q.result.Mapped); !slices.Contains(r.Outside, a) {
			r.Outside = append(r.Outside, a)
		}
	}
	slices.SortFunc(r.Outside, netip.Addr.Compare)
	r.Mapping = ClassifyMapping(r.Seen, d.local(0)...)
	r.Varies = MappingVaries(r.Seen)
	r.Filtering = d.filtering()
	if r.Mapping != weft.NoNAT {
		r.Allocation, r.Step = ClassifyAllocation(d.allocations())
		r.Hairpin = d.hairpin(r.Mapping, r.Filtering)
	}
	return r
}

// local are the addresses of a socket.
func (d *Discovery) local(socket int) (own []netip.AddrPort) {
	for _, a := range d.cfg.Local {
		if socket < len(d.cfg.Ports) {
			own = append(own, netip.AddrPortFrom(a, d.cfg.Ports[socket]))
		}
	}
	return own
}

// advance begins what can begin now.
func (d *Discovery) advance(now time.Time) {
	for {
		for d.step(now) {
		}
		if len(d.waiting) == 0 || now.Before(d.resume) {
			return
		}
		q := d.waiting[0]
		d.waiting = d.waiting[1:]
		if q.change != 0 && slices.ContainsFunc(d.questions, func(o *question) bool {
			return o.change == q.change && o.over && !o.silent()
		}) {
			continue // its twin has been answered
		}
		cfg := d.cfg.Transaction
		cfg.RTO = d.way.rto(cfg.RTO)
		cfg.Request.Change = q.change
		q.tx, q.begun, q.timely = NewTransaction(now, q.to, cfg), now, d.way.known
		d.questions = append(d.questions, q)
		d.resume = now.Add(discoveryPace)
	}
}

// step moves on, if it is time to.
func (d *Discovery) step(now time.Time) bool {
	switch d.phase {
	case phaseSurvey:
		if d.survey() {
			return true
		}
		if at := d.staggered(now); len(d.waiting) > 0 || !at.IsZero() {
			return false
		}
		d.chooseBase()
		switch {
		case d.base != nil:
			d.phase = phaseAllocate
		case !d.busy(phaseSurvey):
			d.phase = phaseOver // nobody answers
		default:
			return false
		}
	case phaseAllocate:
		if d.busy(phaseAllocate) {
			return false
		}
		if next, silent := d.allocated(); next < len(d.cfg.Ports) && silent < givenUp {
			d.ask(next, d.base.to, 0)
			return true
		}
		d.phase = phaseTest
		d.begin(now)
	case phaseTest:
		if d.busy(phaseTest) || d.order.busy() || d.loop.busy() {
			return false
		}
		d.phase = phaseConfirm
		d.confirm()
	case phaseConfirm:
		if d.busy(phaseConfirm) || d.Report().Mapping == weft.MappingUnknown && d.busy(phaseSurvey) {
			return false
		}
		d.phase = phaseOver
	default:
		return false
	}
	return true
}

// busy reports whether a question of that phase or a later one is open or held
// back: a dead server, asked in the survey, must not hold up the tests.
func (d *Discovery) busy(since phase) bool {
	open := func(q *question) bool { return !q.over && q.phase >= since }
	return slices.ContainsFunc(d.waiting, open) || slices.ContainsFunc(d.questions, open)
}

// allocated is the next socket to ask the base, and how many have had no answer.
func (d *Discovery) allocated() (next, silent int) {
	next = 1
	for _, q := range d.questions {
		if q.phase == phaseAllocate {
			next++
			if !q.answered {
				silent++
			}
		}
	}
	return next, silent
}

// ask queues a question.
func (d *Discovery) ask(socket int, to netip.AddrPort, change Change) {
	d.waiting = append(d.waiting, &question{phase: d.phase, socket: socket, to: to, change: change})
}

// find is the first such question.
func (d *Discovery) find(socket int, to netip.AddrPort, change Change) *question {
	is := func(q *question) bool { return q.socket == socket && same(q.to, to) && q.change == change }
	if i := slices.IndexFunc(d.questions, is); i >= 0 {
		return d.questions[i]
	}
	if i := slices.IndexFunc(d.waiting, is); i >= 0 {
		return d.waiting[i]
	}
	return nil
}

// sooner is the earlier of two times, of which the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
