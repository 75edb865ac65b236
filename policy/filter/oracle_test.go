package filter

import (
	"net/netip"
	"slices"
	"time"

	"weft"
)

// An oracle judges as the package comment says, in words, from lists that it goes through from front to back, and forgets
// nothing. Where a flow's time is about to be over it answers "either", since the filter writes times anew once a second: there the
// history ends.
type oracle struct {
	config Config
	begun  []*begun
	pieces []fragments
}

type begun struct {
	p              packet // from the local side
	ours, answered bool
	ended          bool          // FIN or RST has been seen
	last           time.Duration // packet that keeps it
}

type fragments struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
	end      int
	at       time.Duration
	in       bool
}

type answer int

const (
	no answer = iota
	yes
	either
)

// slack is how much earlier than on the oracle's time a flow may be forgotten.
const slack = 3 * time.Second

func sameFlow(a, b packet) bool {
	if a.src != b.src || a.dst != b.dst || a.proto != b.proto {
		return false
	}
	switch a.proto {
	case weft.ProtoTCP, weft.ProtoUDP, weft.ProtoSCTP:
		return a.sport == b.sport && a.dport == b.dport
	case weft.ProtoICMP, weft.ProtoICMPv6:
		return a.sport == b.sport
	}
	return true
}

// alive tells whether a flow is remembered.
func (x *begun) alive(now time.Duration) answer {
	least, most := time.Duration(0), time.Duration(0)
	switch x.p.proto {
	case weft.ProtoTCP:
		least = 4 * time.Minute
		if x.answered {
			least = 2*time.Hour + 4*time.Minute
		}
		most = least
		if x.ended {
			least = 10 * time.Second
		}
	case weft.ProtoUDP:
		least, most = 5*time.Minute, 5*time.Minute
	case weft.ProtoICMP, weft.ProtoICMPv6:
		least, most = time.Minute, time.Minute
	default:
		least, most = 10*time.Minute, 10*time.Minute
	}
	switch idle := now - x.last; {
	case idle < least-slack:
		return yes
	case idle > most+slack:
		return no
	}
	return either
}

// find looks for a flow by a packet of the local side.
func (o *oracle) find(now time.Duration, p packet) (*begun, answer) {
	for _, x := range slices.Backward(o.begun) {
		if sameFlow(x.p, p) {
			return x, x.alive(now)
		}
	}
	return nil, no
}

func (o *oracle) node(a netip.Addr) (n weft.Node, mine bool) {
	for _, n := range o.config.Peers {
		if slices.Contains(n.Addrs, a) {
			return n, n.Gateway == o.config.Self.ID
		}
	}
	return weft.Node{}, false
}

func (o *oracle) own(a netip.Addr) bool { return slices.Contains(o.config.Self.Addrs, a) }

// port is what rules call the port.
func (p packet) port() uint16 {
	switch p.proto {
	case weft.ProtoTCP, weft.ProtoUDP, weft.ProtoSCTP:
		return p.dport
	}
	return 0
}

// allows goes through the rules.
func (o *oracle) allows(by weft.Node, p packet) bool {
	who := by
	if n, _ := o.node(p.src); n.ID != 0 {
		who = n
	}
	to, guest := o.node(p.dst)
	for _, r := range o.config.Rules {
		from := slices.ContainsFunc(r.From, func(s weft.Source) bool {
			prefix, ok := s.Prefix()
			return s.Includes(who) || ok && prefix.Contains(p.src)
		})
		there := len(r.To) == 0 && o.own(p.dst) || slices.ContainsFunc(r.To, func(x netip.Prefix) bool {
			outside := !o.own(p.dst) && to.ID == 0
			return x.Contains(p.dst) && (x.Bits() > 0 || outside)
		})
		ports := len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(x weft.PortRange) bool { return x.Contains(p.proto, p.port()) })
		if from && there && ports {
			return true
		}
	}
	if by.Gateway != o.config.Self.ID {
		return false
	}
	// What a guest sends to others is for these to judge.
	routed := slices.ContainsFunc(o.config.Peers, func(n weft.Node) bool {
		return slices.ContainsFunc(n.Routes, func(x netip.Prefix) bool { return x.Contains(p.dst) })
	})
	return !guest && (to.ID != 0 || routed)
}

func (p packet) begins() bool {
	switch p.proto {
	case weft.ProtoTCP:
		return p.flags&flagSYN != 0 && p.flags&flagACK == 0
	case weft.ProtoICMP:
		return p.icmp != 0
	case weft.ProtoICMPv6:
		return p.icmp != 129
	}
	return false
}

func (p packet) onlyAnswers() bool {
	switch p.proto {
	case weft.ProtoTCP:
		return !p.begins() && p.flags&(flagSYN|flagRST) != 0
	case weft.ProtoICMP:
		return p.icmp == 0
	case weft.ProtoICMPv6:
		return p.icmp == 129
	}
	return false
}

func (o *oracle) later(now time.Duration, p packet, in bool) answer {
	for _, x := range slices.Backward(o.pieces) {
		if x.src == p.src && x.dst == p.dst && x.id == p.id && (x.proto == p.proto || p.src.Is6()) && x.in == in {
			switch idle := now - x.at; {
			case p.at < x.end || idle > 30*time.Second+slack:
				return no
			case idle > 30*time.Second-slack:
				return either
			}
			return yes
		}
	}
	return no
}

// remember keeps a flow, or what a packet says of it.
func (o *oracle) remember(now time.Duration, x *begun, p packet, ours, out bool) {
	if x == nil {
		local := p
		if !out {
			local = p.reversed()
		}
		x = &begun{p: local, ours: ours}
		o.begun = append(o.begun, x)
	} else if out || !x.ours || p.proto == weft.ProtoTCP || !x.answered {
		// The first answer counts whatever it is.
	} else {
		return
	}
	x.last = now
	if out != x.ours {
		x.answered = true
	}
	if p.proto == weft.ProtoTCP {
		switch {
		case p.flags&flagRST != 0, p.flags&flagFIN != 0 && !p.begins():
			x.ended = true
		case p.begins():
			x.ended = false
		}
	}
}

func (o *oracle) piece(now time.Duration, p packet, in bool) {
	if p.fragment == first {
		o.pieces = append(o.pieces, fragments{p.src, p.dst, p.id, p.proto, len(p.transport()), now, in})
	}
}

// admit judges a packet that came from a peer.
func (o *oracle) admit(now time.Duration, by weft.Node, p packet) answer {
	switch {
	case p.route || p.short > 0:
		return no
	case p.fragment == later:
		return o.later(now, p, true)
	case p.about != nil:
		q := *p.about
		if q.src != p.dst || !o.speaks(by, q.dst) {
			return no
		}
		x, alive := o.find(now, q)
		if x == nil || alive == no || !x.ours && !o.allows(by, q.reversed()) {
			return no
		}
		return alive
	}
	x, alive := o.find(now, p.reversed())
	switch alive {
	case either:
		return either
	case no:
		x = nil
	}
	rule := o.allows(by, p)
	switch {
	case x != nil && x.ours && !p.begins():
		o.remember(now, x, p, true, false)
		o.piece(now, p, true)
		return yes
	case rule:
		if x == nil || !x.ours {
			o.remember(now, x, p, false, false)
		}
		o.piece(now, p, true)
		return yes
	}
	return no
}

func (o *oracle) speaks(n weft.Node, a netip.Addr) bool {
	if slices.Contains(n.Addrs, a) || slices.ContainsFunc(n.Routes, func(x netip.Prefix) bool { return x.Contains(a) }) {
		return true
	}
	m, _ := o.node(a)
	return m.Gateway != 0 && m.Gateway == n.ID
}

// send judges a packet that goes to a peer.
func (o *oracle) send(now time.Duration, p packet) answer {
	_, guest := o.node(p.src)
	own := guest || o.own(p.src)
	switch {
	case p.fragment == later:
		if own {
			return yes
		}
		return o.later(now, p, false)
	case p.about != nil:
		if own {
			return yes
		}
		_, alive := o.find(now, p.about.reversed())
		return alive
	}
	x, alive := o.find(now, p)
	switch alive {
	case either:
		return either
	case no:
		x = nil
	}
	anew := x != nil && !x.ours && own && p.begins() && p.proto == weft.ProtoTCP
	if anew {
		x = nil
	}
	if x != nil {
		o.remember(now, x, p, x.ours, true)
		if !own {
			o.piece(now, p, false)
		}
		return yes
	}
	if !own {
		t, through := o.find(now, p.reversed())
		entering := slices.ContainsFunc(o.config.Enter, func(x netip.Prefix) bool { return x.Contains(p.src) })
		switch {
		case through == either:
			return either
		case t != nil && !t.ours && through == yes:
		case !entering:
			return no
		}
	}
	if !p.onlyAnswers() {
		o.remember(now, nil, p, true, true)
		o.begun[len(o.begun)-1].answered = anew // the peer had been heard
	}
	if !own {
		o.piece(now, p, false)
	}
	return yes
}
