package stun

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weft"
)

// A world of one client, one NAT and some servers, in virtual time. It steps a
// Discovery and nothing in it runs by itself.

var (
	simLocal   = ap("10.0.0.5:50000")
	simOutside = netip.MustParseAddr("203.0.113.9")
	simRTT     = 30 * time.Millisecond
)

// nat translates for one inside socket. Filtering is per mapping.
type nat struct {
	mapping   weft.Mapping // weft.NoNAT: a firewall, or with endpoint-independent filtering nothing at all
	filtering weft.Filtering
	mappings  []*natMapping
}

type natMapping struct {
	key      netip.AddrPort // the part of the destination that the mapping depends on
	outside  netip.AddrPort
	contacts []netip.AddrPort
}

func (n *nat) outbound(to netip.AddrPort) *natMapping {
	var key netip.AddrPort
	switch n.mapping {
	case weft.AddressDependentMapping:
		key = netip.AddrPortFrom(to.Addr(), 0)
	case weft.AddressAndPortDependentMapping:
		key = to
	}
	i := slices.IndexFunc(n.mappings, func(m *natMapping) bool { return m.key == key })
	if i < 0 {
		i = len(n.mappings)
		outside := netip.AddrPortFrom(simOutside, uint16(61000+i))
		if n.mapping == weft.NoNAT {
			outside = simLocal
		}
		n.mappings = append(n.mappings, &natMapping{key: key, outside: outside})
	}
	m := n.mappings[i]
	if !slices.Contains(m.contacts, to) {
		m.contacts = append(m.contacts, to)
	}
	return m
}

func (n *nat) letsIn(from, to netip.AddrPort) bool {
	i := slices.IndexFunc(n.mappings, func(m *natMapping) bool { return m.outside == to })
	if i < 0 {
		return false
	}
	return slices.ContainsFunc(n.mappings[i].contacts, func(c netip.AddrPort) bool {
		switch n.filtering {
		case weft.EndpointIndependentFiltering:
			return true
		case weft.AddressDependentFiltering:
			return c.Addr() == from.Addr()
		}
		return c == from
	})
}

// simServer answers on one socket of the world; a nil one is a dead address.
type simServer func(req []byte, from, local netip.AddrPort) (Reply, bool)

func serverOf(r *Responder) simServer {
	return func(req []byte, from, local netip.AddrPort) (Reply, bool) { return r.Respond(nil, req, from, local) }
}

type world struct {
	nat     nat
	servers map[netip.AddrPort]simServer
	loss    float64 // of each packet, each way
	rand    *rand.Rand

	now    time.Time
	flight []flight
	asked  []netip.AddrPort            // whom the client sent to, in order, without repetition
	begun  map[TransactionID]time.Time // when each transaction was first heard of
	told   map[question]bool
	twice  []question // asked in more than one transaction
}

// question is what a transaction asks.
type question struct {
	to     netip.AddrPort
	change Change
}

// flight is a packet on its way to the client.
type flight struct {
	at       time.Time
	from, to netip.AddrPort // outside of the NAT
	pkt      []byte
}

func newWorld(mapping weft.Mapping, filtering weft.Filtering) *world {
	return &world{
		nat:     nat{mapping: mapping, filtering: filtering},
		servers: map[netip.AddrPort]simServer{},
		rand:    rand.New(rand.NewPCG(1, 2)),
		now:     epoch,
		begun:   map[TransactionID]time.Time{},
		told:    map[question]bool{},
	}
}

// four puts r's four IPv4 sockets on the network.
func (w *world) four(r *Responder) *world {
	p, q := r.IPv4.Primary, r.IPv4.Alternate
	for _, a := range []netip.AddrPort{p, q, netip.AddrPortFrom(p.Addr(), q.Port()), netip.AddrPortFrom(q.Addr(), p.Port())} {
		w.servers[a] = serverOf(r)
	}
	return w
}

// single puts servers with one address on the network.
func (w *world) single(addrs ...netip.AddrPort) *world {
	for _, a := range addrs {
		w.servers[a] = serverOf(&Responder{})
	}
	return w
}

func (w *world) lost() bool { return w.rand.Float64() < w.loss }

// send takes a packet from the client to the server and the reply, if any, back
// to the outside of the NAT.
func (w *world) send(pkt []byte, to netip.AddrPort) {
	if !slices.Contains(w.asked, to) {
		w.asked = append(w.asked, to)
	}
	id := TransactionID(pkt[8:headerLen])
	if w.begun[id].IsZero() {
		w.begun[id] = w.now
		m, _ := Parse(pkt)
		q := question{to, m.Change}
		if w.told[q] {
			w.twice = append(w.twice, q)
		}
		w.told[q] = true
	}
	m := w.nat.outbound(to)
	server := w.servers[to]
	if server == nil || w.lost() {
		return
	}
	reply, ok := server(pkt, m.outside, to)
	if !ok || w.lost() || w.servers[reply.From] == nil {
		return
	}
	w.flight = append(w.flight, flight{w.now.Add(simRTT), reply.From, reply.To, reply.Packet})
}

// run drives the discovery to its end and returns its report and how long it took.
func (w *world) run(d *Discovery) (Report, time.Duration) {
	start := w.now
	for {
		a, next, done := d.Poll(w.now)
		pkt, to := a.Packet, a.To
		if done {
			return d.Report(), w.now.Sub(start)
		}
		if pkt != nil {
			w.send(pkt, to)
			continue
		}
		// Flights are in order of arrival: all take equally long.
		if len(w.flight) > 0 && !w.flight[0].at.After(next) {
			f := w.flight[0]
			w.flight = w.flight[1:]
			w.now = f.at
			if w.nat.letsIn(f.from, f.to) {
				d.Handle(w.now, 0, f.pkt, f.from)
			}
			continue
		}
		if !next.After(w.now) {
			panic("the discovery wants to be polled in the past")
		}
		w.now = next
	}
}
