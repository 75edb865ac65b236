package stun

import (
	"net/netip"
	"slices"
	"time"

	"weft"
)

const (
	// filterRounds is how often RFC 5780's filtering tests are run: with discoveryRc
	// copies each, 8 in all, of which with 10 % loss each way all are lost once in
	// 600,000 times.
	filterRounds = 2

	// A prober is asked probesMost times at most, until it has said probesSure times
	// that it has sent one: with 10 % loss on the way all are lost once in
	// 100,000 times. It takes some at once, and then one per second.
	probesMost, probesSure = 8, 5
	probesEvery            = 350 * time.Millisecond
	// answerPatience is how long the answers of a prober are waited for, and
	// probePatience, in RTOs, how long a probe is after what was told of it.
	answerPatience = 6 * time.Second
	probePatience  = 4

	// loopCopies is how often two sockets behind the NAT write to each other, and
	// loopEvery how far apart: long enough for a filter that opens late.
	loopCopies = 7
	loopEvery  = 200 * time.Millisecond

	// disbelief is how probable it may be, as far as the answers so far tell, that
	// silence is just loss.
	disbelief = 1e-3
)

// way is what the answers tell of the way to the servers and back.
type way struct {
	known     bool
	rtt       time.Duration // the least
	heardFrom int           // answers to questions that knew how long to wait
	lost      int           // copies of these that were not answered
}

// heard takes an answer. Of a question that was repeated it is not known which copy
// was answered, so its age is no RTT but a bound of it.
func (w *way) heard(q *question, now time.Time) {
	if age := now.Sub(q.begun); !w.known || age < w.rtt {
		w.known, w.rtt = true, age
	}
	if q.timely && q.change == 0 {
		w.heardFrom++
		w.lost += q.tx.sent - 1
	}
}

// rto is how long to wait before a question is repeated.
func (w *way) rto(least time.Duration) time.Duration {
	return max(least, min(w.rtt*3/2, slowestRTO))
}

// believes reports whether silence where n packets should have come means
// something: were loss what it is with one more lost, that would be improbable.
func (w *way) believes(n int) bool {
	p, loss := 1.0, float64(w.lost+1)/float64(w.heardFrom+w.lost+2)
	for range n {
		p *= loss
	}
	return p <= disbelief
}

// begin begins the tests of filter and hairpinning.
func (d *Discovery) begin(now time.Time) {
	var sockets []*question // the base's answers to them
	for _, q := range d.questions {
		if q.phase == phaseAllocate && q.answered {
			sockets = append(sockets, q)
		}
	}
	if len(sockets) == 0 {
		return
	}
	// A prober sends to the address where it knows us: with arbitrary pooling, one
	// of the sockets may have that address.
	at := 0
	var prober *Prober
	if prober = d.proberBeside(d.base.to); prober != nil {
		at = slices.IndexFunc(sockets, func(q *question) bool { return plainAddr(q.result.Mapped) == prober.Seen.Unmap() })
	}
	if prober != nil && at >= 0 {
		d.order = &order{
			socket: sockets[at].socket, port: sockets[at].result.Mapped.Port(), to: prober.Server,
			next: now, patience: probePatience * d.way.rto(d.cfg.Transaction.RTO),
		}
	}
	at = max(at, 0)
	d.filter = sockets[at]
	base := d.base
	for range filterRounds {
		if trustworthy(base.to, base.result.Other) {
			d.ask(d.filter.socket, base.to, ChangeIP|ChangePort)
		}
		if from, ok := d.otherPort(); ok {
			if d.find(0, from, 0) == nil {
				d.ask(0, from, 0) // is the one that may be silent there?
			}
			d.ask(d.filter.socket, base.to, ChangePort)
		}
	}
	// What goes to where the base says that we are is small and little, should it lie.
	sockets = slices.DeleteFunc(sockets, func(q *question) bool {
		return q == d.filter || q.result.Mapped.Addr().IsLoopback() && !base.to.Addr().IsLoopback()
	})
	if len(sockets) >= 2 && d.Report().Mapping != weft.NoNAT {
		d.loop = &loop{next: now}
		for i, q := range sockets[:2] {
			d.loop.ends[i] = end{q: q, id: NewTransactionID()}
		}
	}
}

// confirm asks again what must not have changed.
func (d *Discovery) confirm() {
	if first := d.find(0, d.base.to, 0); first != nil {
		d.ask(0, first.to, 0)
	}
	if d.filter != nil {
		d.ask(d.filter.socket, d.base.to, 0)
		if port, ok := d.otherPort(); ok && d.find(d.filter.socket, d.base.to, ChangePort) != nil {
			d.ask(d.filter.socket, port, 0)
		}
	}
	if d.loop != nil && !d.loop.came {
		for _, e := range d.loop.ends {
			d.ask(e.q.socket, d.base.to, 0)
		}
	}
}

// otherPort is where the base's answers come from after a change of the port alone.
func (d *Discovery) otherPort() (netip.AddrPort, bool) {
	switch base := d.base; {
	case base == nil:
		return netip.AddrPort{}, false
	case trustworthy(base.to, base.result.Other):
		return netip.AddrPortFrom(base.to.Addr(), base.result.Other.Port()), true
	default:
		return netip.AddrPortFrom(base.to.Addr(), base.result.Port), len(alternates(base)) > 0
	}
}

// order is the test by which a prober shows whether the filter of a socket lets in
// somebody to whom it never sent. Its methods may be called on nil, which is over.
type order struct {
	socket   int
	port     uint16 // outside
	to       netip.AddrPort
	patience time.Duration

	open       []TransactionID // asked for, and not answered
	ids        []TransactionID // all
	sent       int             // of which it is said that they were
	next       time.Time       // of the next probe
	last       time.Time       // when something happened
	came, over bool
}

func (o *order) busy() bool { return o != nil && !o.over }

func (o *order) poll(now time.Time) (a Action, next time.Time, ended bool) {
	if !o.busy() {
		return Action{}, time.Time{}, false
	}
	end := o.last.Add(o.patience)
	switch {
	case o.came, len(o.ids)-len(o.open)-o.sent > probesMost-probesSure: // it does not want to
		o.over = true
	case o.sent >= probesSure || len(o.ids) == probesMost:
		if len(o.open) > 0 && o.sent < probesSure {
			end = o.last.Add(answerPatience)
		}
		if now.Before(end) {
			return Action{}, end, false
		}
		o.over = true
	case now.Before(o.next):
		return Action{}, o.next, false
	default:
		p := Probe{ID: NewTransactionID(), Port: o.port}
		o.ids, o.open = append(o.ids, p.ID), append(o.open, p.ID)
		o.next, o.last = now.Add(probesEvery), now
		return Action{Socket: o.socket, To: o.to, Probe: p}, now, false
	}
	return Action{}, time.Time{}, true
}

func (o *order) probed(now time.Time, id TransactionID, sent bool) {
	if o == nil || !slices.Contains(o.open, id) {
		return
	}
	o.open = slices.DeleteFunc(o.open, func(i TransactionID) bool { return i == id })
	o.last = now
	if sent {
		o.sent++
	}
}

func (o *order) handle(socket int, pkt []byte, from netip.AddrPort) bool {
	if o == nil || socket != o.socket || plainAddr(from) != plainAddr(o.to) {
		return false
	}
	m, err := Parse(pkt)
	if err != nil || m.Class == ClassRequest || !slices.Contains(o.ids, m.ID) {
		return false
	}
	o.came = true
	return true
}

// loop is the test of hairpinning: two sockets send to each other's outside address
// until something comes. Both do, for the filters to open. Its methods may be called
// on nil, which is over.
type loop struct {
	ends       [2]end
	sent       int // of both ends together
	next       time.Time
	came, over bool
}

type end struct {
	q  *question // by which it knows its outside address
	id TransactionID
}

func (l *loop) busy() bool { return l != nil && !l.over }

func (l *loop) poll(now time.Time) (a Action, next time.Time, ended bool) {
	if !l.busy() {
		return Action{}, time.Time{}, false
	}
	switch {
	case l.came:
		l.over = true
	case now.Before(l.next):
		return Action{}, l.next, false
	case l.sent >= 2*loopCopies:
		l.over = true
	default:
		from, to := l.ends[l.sent%2], l.ends[1-l.sent%2]
		l.sent++
		l.next = now.Add(loopEvery / 2)
		if l.sent == 2*loopCopies {
			l.next = now.Add(2 * loopEvery)
		}
		// An indication, which nobody answers, should it go astray.
		w := newWriter(nil, ClassIndication, from.id)
		return Action{Socket: from.q.socket, Packet: w.done(), To: to.q.result.Mapped}, now, false
	}
	return Action{}, time.Time{}, true
}

func (l *loop) handle(socket int, pkt []byte) bool {
	if l == nil || !Is(pkt) {
		return false
	}
	id := TransactionID(pkt[8:headerLen])
	for i, e := range l.ends {
		if e.q.socket == socket && id == l.ends[1-i].id {
			l.came = true
			return true
		}
	}
	return false
}
